"""`scripts/demo`: Kafka, the services, three tasks and a conversation, and their completions read back.

What the runs do is read from run-events as it happens, the way any other consumer would. In the conversation a person
says yes to a booking and goes on talking: the demo is that person, and appends to run-events what a gateway would.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics
from runfold.dev.embedded_kafka import EmbeddedKafka
from runfold.dev.stack import Stack
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter, new_event_id
from runfold.events.types import (
    ApprovalDecided,
    ApprovalRequired,
    ChildCompleted,
    CloseRequested,
    Event,
    MessageReceived,
    ModelCallStarted,
    ModelFailed,
    ModelReplied,
    PhaseEntered,
    RunFinished,
    TaskCompleted,
    TaskRequested,
    ToolDispatchStarted,
    ToolReported,
    ToolSettled,
)
from runfold.ports import Permanent

FILES = Path(__file__).parent / "demo_files"
TASKS = {
    "traveller": "When should I leave Porto to enjoy Lisbon tomorrow?",
    "accountant": "Add 19.5 and 4.25 and convert the sum to XYZ.",
    "counter": "Count to four.",
    "organiser": "Get me to Lisbon tomorrow, and book the train.",
}
INTERACTIVE = "organiser"
SAID = ["Thank you. Please mail ana@example.org when I arrive."]  # in the conversation, after each answer
TIMEOUT_S = 120.0
PARTITIONS = 4


def demo(bootstrap: str | None) -> int:
    """Run the demo on this Kafka, or on one of its own. Answers the exit status."""
    began = time.monotonic()
    with _kafka(bootstrap) as servers, tempfile.TemporaryDirectory() as blobs:
        _say(f"Kafka answers at {servers} ({time.monotonic() - began:.1f} s)")
        names = TopicNames(f"demo-{uuid4().hex[:8]}")
        ensure_topics(servers, names.prefix, run_partitions=PARTITIONS, task_partitions=PARTITIONS)
        environment = {
            "KAFKA_BOOTSTRAP_SERVERS": servers,
            "RUNFOLD_TOPIC_PREFIX": names.prefix,
            "RUNFOLD_RUN_PARTITIONS": str(PARTITIONS),
            "RUNFOLD_BLOBS": blobs,
            "RUNFOLD_AGENTS": str(FILES / "agents"),
            "RUNFOLD_TOOLS": "runfold.dev.demo_tools:TOOLS,runfold.adapters.waiting_tools:TOOLS",
            "OPENAI_API_KEY": "none-needed",
        }
        try:
            with Stack(environment) as stack:
                model = stack.start("dev-model", "--script", str(FILES / "model.json"))
                address = (model.stdout.readline() if model.stdout else "").rpartition(" ")[2].strip()
                stack.start("intake", quiet=False)
                stack.start("executor", environment={"OPENAI_BASE_URL": address}, quiet=False)
                completed = _follow(servers, names, stack)
        finally:
            delete_topics(servers, names)
    _say(f"{len(completed)} of {len(TASKS)} tasks completed in {time.monotonic() - began:.1f} s")
    return 0 if len(completed) == len(TASKS) else 1


@contextmanager
def _kafka(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    _say("starting Kafka (the first time its jars are fetched, about a minute)")
    with EmbeddedKafka() as kafka:
        yield kafka.bootstrap_servers


def _follow(servers: str, names: TopicNames, stack: Stack) -> dict[str, TaskCompleted]:
    """Submit the tasks; show what happens until each has its completion."""
    codec = Codec()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"demo-{uuid4().hex}", "enable.auto.commit": False})
    consumer.assign(
        [TopicPartition(topic, n, 0) for topic in (names.events, names.completions) for n in range(PARTITIONS)]
    )
    person = Person(Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"}), names, codec)
    person.submit()
    completed: dict[str, TaskCompleted] = {}
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while not person.asked_for <= set(completed):
            if time.monotonic() > deadline:
                raise Permanent(f"the demo did not end within {TIMEOUT_S:g} s")
            if (problem := stack.failed()) is not None:
                raise Permanent(problem)
            for message in consumer.consume(100, 0.2):
                if message.error() is None:
                    _show(codec, names, message, completed)
                    person.see(message)
    finally:
        consumer.close()
    return {task_id: event for task_id, event in completed.items() if task_id in person.asked_for}


class Person:
    """Asks for the tasks, says yes, goes on talking."""

    def __init__(self, producer: Producer, names: TopicNames, codec: Codec) -> None:
        self.asked_for: set[str] = set()
        self._producer, self._names, self._codec = producer, names, codec
        self._headers = HeaderWriter("/runfold/demo")
        self._to_say = list(SAID)

    def submit(self) -> None:
        for agent, text in TASKS.items():
            task_id = f"{agent}-{uuid4().hex[:6]}"
            self.asked_for.add(task_id)
            event = TaskRequested(task_id=task_id, agent=agent, input=text, interactive=agent == INTERACTIVE)
            self._produce(self._names.requests, task_id, event)
            _say(f"{task_id}: TaskRequested: {text}")
        self._producer.flush(30)

    def see(self, message: Message) -> None:
        """Answer what a run waits for."""
        run_id = (message.key() or b"").decode()
        event = self._codec.decode(message.value() or b"")
        if isinstance(event, ApprovalRequired):
            approval = str(dict(message.headers() or ())["ce_id"], "ascii")  # type: ignore[arg-type]  # it is there
            _say(f"{run_id}:   a person says yes")
            self._tell(
                run_id,
                ApprovalDecided(
                    command_id=f"yes-{approval}",
                    approval=approval,
                    arguments_sha256=event.arguments_sha256,
                    approved=True,
                ),
            )
        elif isinstance(event, PhaseEntered) and event.phase == "awaiting_message":
            if self._to_say:
                text = self._to_say.pop(0)
                _say(f"{run_id}:   a person says: {text}")
                self._tell(run_id, MessageReceived(command_id=new_event_id(), text=text))
            else:
                self._tell(run_id, CloseRequested(command_id=new_event_id()))

    def _tell(self, run_id: str, event: Event) -> None:
        self._produce(self._names.events, run_id, event)
        self._producer.flush(30)

    def _produce(self, topic: str, key: str, event: Event) -> None:
        stamped = self._headers.fact(type(event).__name__, new_event_id(), time.time_ns() // 1_000_000)
        self._producer.produce(topic, self._codec.encode(event), key, headers=stamped)  # type: ignore[arg-type]  # its list is invariant


def _show(codec: Codec, names: TopicNames, message: Message, completed: dict[str, TaskCompleted]) -> None:
    event = codec.decode(message.value() or b"")
    key = (message.key() or b"").decode()
    if isinstance(event, TaskCompleted):
        completed[key] = event
        totals = event.totals
        _say(
            f"{key}: TaskCompleted: {event.status}: {event.result or event.reason} "
            f"({totals.turns} turns, {totals.tool_calls} tool calls, {totals.tokens} tokens)"
        )
    elif message.topic() == names.events and (line := _line(event)):
        _say(f"{key}:   {line}")


def _line(event: Event) -> str:
    match event:
        case ModelCallStarted(turn=turn, attempt=attempt):
            return f"turn {turn}: the model is called" + (f" (attempt {attempt})" if attempt > 1 else "")
        case ModelReplied(items=items):
            return "the model replied: " + "; ".join(i.text or f"{i.name}({i.arguments})" for i in items)
        case ModelFailed(kind=kind):
            return f"the model call failed: {kind}"
        case ApprovalRequired(reason=reason):
            return f"a person is asked to approve a call: {reason}"
        case ToolDispatchStarted(tool="delegate"):
            return "waits for another agent's task"
        case ChildCompleted(status=status, result=result):
            return f"the other agent's task is {status}: {result}"
        case ToolDispatchStarted(tool=tool):
            return f"{tool} starts"
        case ToolReported(outcome=outcome, output=output):
            return f"a tool {outcome}: {output[:100]}"
        case ToolSettled(outcome=outcome):
            return f"a call is settled: {outcome}"
        case RunFinished(status=status):
            return f"the run ends: {status}"
        case _:
            return ""


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
