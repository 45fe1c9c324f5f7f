"""An installation for the scenarios: intake and executor as processes, the scripted model over HTTP, and all topics read.

One world serves many runs. The script of a run stands under its id, so each test brings its own; the model server is as
strict as the strictest: a history out of order is answered with a 400, and the run shows it.

People's acts are facts, appended to run-events by a plain Kafka client.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.adapters.chat_history import HistoryStyle, chat_messages
from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics
from runfold.core.fold import take
from runfold.core.state import RunState
from runfold.dev.model_server import ModelServer
from runfold.dev.scripted_app import Received
from runfold.dev.stack import Stack
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter, new_event_id, read_envelope
from runfold.events.partitioner import murmur2_partition
from runfold.events.types import (
    ApprovalDecided,
    CancelRequested,
    Event,
    MessageReceived,
    QuestionAnswered,
    TaskCancelled,
    TaskCompleted,
    TaskRequested,
    ToolReported,
)
from tests.cases.comparison import order_problem
from tests.integration.oracle import Seen, accepted

PATIENCE_S = 60.0
PARTITIONS = 2
ROUNDING_MS = 5  # the broker's stamps and the clocks of processes are whole milliseconds, each rounded by itself
PROGRAM = Path(__file__).with_name("executor_process.py")
AGENTS = ("worker", "leaf")
CODEC = Codec()
WRITER = HeaderWriter("/test")
Message = dict[str, Any]


@dataclass(frozen=True)
class Stamped(Seen):
    """A record with the broker's stamp."""

    time_ms: int

    @cached_property
    def body(self) -> Any:
        return CODEC.decode(self.value)


@dataclass(frozen=True)
class Effect:
    """A line that a tool left."""

    run: str
    key: str  # idempotency key
    dispatch: str
    what: str


class World:
    """Topics, processes and a model server; `run` starts a run."""

    def __init__(self, bootstrap: str, names: TopicNames, folder: Path, model: ModelServer, stack: Stack) -> None:
        self.bootstrap, self.names, self.folder, self.model = bootstrap, names, folder, model
        model.app.refuse = order_problem
        self._stderr = (folder / "stderr").open("wb")
        self.executors: dict[str, subprocess.Popen[bytes]] = {}
        self.intake = stack.start("intake")
        # Records of a test that is in a hurry: each is to be there when `put` returns.
        self._producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 0})
        self._reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "fetch.wait.max.ms": 10})
        topics = {
            names.events: PARTITIONS,
            names.completions: PARTITIONS,
            names.stream: PARTITIONS,
            names.quarantine: 1,
        }
        self._reader.assign([TopicPartition(topic, n, 0) for topic, many in topics.items() for n in range(many)])
        self.records: list[Stamped] = []
        self.by_key: dict[str, list[Stamped]] = {}

    # ---- processes

    def executor(self, name: str = "one", environment: dict[str, str] | None = None, **more: Any) -> None:
        """Start one; it is on its way when this returns."""
        asked = {
            "name": name, "bootstrap": self.bootstrap, "prefix": self.names.prefix, "partitions": PARTITIONS,
            "folder": str(self.folder), "model": self.model.base_url, "agents": AGENTS, "orphaned_ms": 600, **more,
        }  # fmt: skip
        self.executors[name] = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(asked)],
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
        )

    def kill(self, name: str = "one") -> None:
        """As a host that loses its power."""
        process = self.executors.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)

    def restart(self, **more: Any) -> None:
        """Kill the executor if there is one; another begins under its name, as a pod that is made again."""
        if "one" in self.executors:
            self.kill()
        self.executor(**more)

    @contextmanager
    def intake_stopped(self) -> Iterator[None]:
        """No request becomes a run meanwhile."""
        self.intake.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.intake.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for process in self.executors.values():
            process.terminate()
        for process in self.executors.values():
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._reader.close()
        self._stderr.close()

    # ---- topics

    def put(self, topic: str, key: str, event: Event, event_id: str = "") -> None:
        """Produce, and wait until it is there."""
        headers = WRITER.fact(type(event).__name__, event_id or new_event_id(), time.time_ns() // 1_000_000)
        self._producer.produce(topic, CODEC.encode(event), key, headers=headers)
        assert self._producer.flush(PATIENCE_S) == 0

    def read(self) -> None:
        for message in self._reader.consume(500, 0.01):
            assert message.error() is None, message.error()
            seen = Stamped(
                topic=str(message.topic()).removeprefix(f"{self.names.prefix}."),
                partition=message.partition() or 0,
                offset=message.offset() or 0,
                key=(message.key() or b"").decode(),
                value=message.value() or b"",
                headers={name: value or b"" for name, value in message.headers() or ()},
                time_ms=message.timestamp()[1],
            )
            # No scenario is worth that: a bug of ours, better said at once than waited out.
            assert seen.type not in ("RunParked", "Quarantined"), (seen.key, seen.body)
            self.records.append(seen)
            self.by_key.setdefault(seen.key, []).append(seen)

    def until(self, is_so: Callable[[], object], what: str) -> None:
        """Read until it is so."""
        ends_at = time.monotonic() + PATIENCE_S
        while not is_so():
            ended = [name for name, process in self.executors.items() if process.poll() is not None]
            if ended or time.monotonic() > ends_at:
                last = [(each.topic, each.key, each.type) for each in self.records[-20:]]
                said = (self.folder / "stderr").read_text()[-4_000:]
                raise AssertionError(
                    f"{what}: not within {PATIENCE_S:g} s; {ended=}; the last records are {last}; {said}"
                )
            self.read()

    # ---- gates and effects

    def gate(self) -> str:
        """A name for a gate that is closed."""
        return f"gate-{uuid4().hex[:8]}"

    def open(self, *gates: str) -> None:
        for gate in gates:
            (self.folder / gate).touch()

    def effects(self, run_id: str) -> list[Effect]:
        lines = (self.folder / "effects").read_text().splitlines()
        return [effect for line in lines if (effect := Effect(*line.split("\t"))).run == run_id]

    # ---- runs

    def run(self, replies: Sequence[object], *, name: str = "run", **task: Any) -> "Run":
        """Ask for a task whose model says this."""
        run = Run(self, f"{name}-{uuid4().hex[:12]}")
        self.model.app.add(run.id, replies)
        given = {"agent": "" if "definition" in task else "worker", "input": "go", **task}
        self.put(self.names.requests, run.id, TaskRequested(task_id=run.id, **given))
        return run

    def pass_by(self, partition: int) -> None:
        """Whatever stands in the log of this partition was seen by the executor when this returns."""
        names = (f"passer-by-{uuid4().hex[:12]}" for _ in range(10_000))
        name = next(name for name in names if murmur2_partition(name.encode(), PARTITIONS) == partition)
        self.model.app.add(name, [{"text": "seen"}])
        self.put(self.names.requests, name, TaskRequested(task_id=name, agent="worker", input="go"))
        assert Run(self, name).over().status == "completed"


@dataclass
class Run:
    """One run: what is in the log about it, what its model was sent, and what people do to it."""

    world: World
    id: str
    _accepted: tuple[int, list[Any]] = field(default=(-1, []))

    # ---- the log

    @property
    def records(self) -> list[Stamped]:
        return [each for each in self.world.by_key.get(self.id, ()) if each.topic == "run-events"]

    def seen(self, *kinds: str) -> list[Stamped]:
        """Facts, and decisions that were accepted, in the order of the log."""
        records = self.records
        if self._accepted[0] != len(records):
            chain = {each.offset for each in accepted(list(records))}
            found = [each for each in records if "follows" not in each.headers or each.offset in chain]
            self._accepted = (len(records), found)
        return [each for each in self._accepted[1] if each.type in kinds]

    def events(self, *kinds: str) -> list[Any]:
        return [each.body for each in self.seen(*kinds)]

    def until(self, kind: str, number: int = 1) -> Stamped:
        """Wait for the n-th event of this kind."""
        self.world.until(lambda: len(self.seen(kind)) >= number, f"{self.id}: {kind} number {number}")
        return self.seen(kind)[number - 1]

    def outcomes(self) -> list[str]:
        """What closed each call, in the order in which it happened; late reports are not among them."""
        late = {each.report for each in self.events("LateReportRecorded")}
        closing = self.seen("ToolReported", "ToolSettled", "QuestionAnswered", "ChildCompleted")
        return [getattr(each.body, "outcome", "succeeded") for each in closing if each.id not in late]

    def state(self) -> RunState:
        """What a process makes of the log that has nothing else."""
        state = RunState(run_id=self.id)
        for each in self.records:
            record = read_envelope(
                each.partition, each.offset, each.time_ms, each.key.encode(), each.value, list(each.headers.items())
            )
            record.body = each.body
            take(state, record)
        return state

    def over(self) -> TaskCompleted:
        """Wait for the end. There is one completion; and a fold of the log explains every request to the model."""
        self.until("TaskReported")
        self.world.until(self._completions, f"{self.id}: its completion")
        completions = self._completions()
        assert len(completions) == 1, completions
        assert len(self.seen("RunFinished")) == 1
        state = self.state()
        instructions = state.context.instructions if state.context is not None else ""
        history = chat_messages(instructions, state.transcript, HistoryStyle())
        for before, after in pairwise([*(request.body["messages"] for request in self.requests), history]):
            assert after[: len(before)] == before
        dispatches = [each.dispatch for each in self.effects if each.what not in ("stopped", "opened")]
        assert len(set(dispatches)) == len(dispatches), "a tool was started twice for one dispatch"
        return next(iter(completions.values()))

    def _completions(self) -> dict[str, TaskCompleted]:
        found = self.world.by_key.get(self.id, ())
        return {each.id: each.body for each in found if each.topic == "task-completions"}

    def nothing_follows(self) -> None:
        """Whatever was appended last has been seen, and led to nothing: no request, no decision, no second end."""
        before = len(self.requests), len(self.seen("ModelCallStarted")), len(self.effects)
        partition = self.records[0].partition
        self.world.pass_by(partition)
        assert (len(self.requests), len(self.seen("ModelCallStarted")), len(self.effects)) == before
        assert len(self.seen("RunFinished")) == len(self.seen("TaskReported")) == len(self._completions()) == 1

    # ---- the model and the tools

    @property
    def requests(self) -> list[Received]:
        return [each for each in self.world.model.requests if each.run == self.id]

    def messages(self, number: int) -> list[Message]:
        """The history of the n-th request, from 0; -1 is the last."""
        messages: list[Message] = self.requests[number].body["messages"]
        return messages

    def results(self, number: int = -1) -> list[str]:
        """The last block of results in the n-th request, in call order; each under the id of its call."""
        messages = self.messages(number)
        at = max(place for place, message in enumerate(messages) if message.get("tool_calls"))
        ids = [call["id"] for call in messages[at]["tool_calls"]]
        block = messages[at + 1 : at + 1 + len(ids)]
        assert [message["tool_call_id"] for message in block] == ids
        return [message["content"] for message in block]

    @property
    def effects(self) -> list[Effect]:
        return self.world.effects(self.id)

    def done(self) -> list[str]:
        """Which tools began, in order."""
        return [effect.what for effect in self.effects]

    def until_begun(self, number: int) -> None:
        """Wait until so many tools have begun."""
        self.world.until(lambda: len(self.effects) >= number, f"{self.id}: {number} tools begun")

    # ---- people and reporters

    def append(self, event: Event, event_id: str = "") -> None:
        self.world.put(self.world.names.events, self.id, event, event_id)

    def say(self, text: str) -> None:
        self.append(MessageReceived(command_id=new_event_id(), text=text, sender="ann"))

    def cancel(self) -> None:
        self.append(CancelRequested(command_id=new_event_id(), reason="not needed any more", sender="ann"))

    def withdraw(self) -> None:
        """Whoever asked for the task takes it back."""
        self.world.put(self.world.names.requests, self.id, TaskCancelled(task_id=self.id, reason="not needed any more"))

    def decide(self, *, approved: bool, sender: str = "ann", **other: Any) -> None:
        """Decide about the last approval that was asked for, as it was shown."""
        asked = self.until("ApprovalRequired")
        given = {"approval": asked.id, "arguments_sha256": asked.body.arguments_sha256, **other}
        self.append(ApprovalDecided(command_id=new_event_id(), approved=approved, sender=sender, **given))

    def answer(self, position: int, text: str) -> None:
        """What a person says to the question that this call of the last reply asks."""
        asked = [each.body for each in self.seen("ToolDispatchStarted") if each.body.position == position][-1]
        self.append(
            QuestionAnswered(command_id=new_event_id(), model_call=asked.model_call, position=position, text=text)
        )

    def report(self, position: int, output: str) -> None:
        """The outcome of an external tool, by whoever ran it."""
        dispatch = next(each for each in self.seen("ToolDispatchStarted") if each.body.position == position)
        self.append(
            ToolReported(
                model_call=dispatch.body.model_call, position=position, dispatch=dispatch.id, source="somebody",
                outcome="succeeded", output=output, output_bytes=len(output.encode()),
            )
        )  # fmt: skip


@contextmanager
def world(bootstrap: str, folder: Path) -> Iterator[World]:
    names = ensure_topics(bootstrap, f"test-{uuid4().hex[:12]}", run_partitions=PARTITIONS, task_partitions=PARTITIONS)
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap, "RUNFOLD_TOPIC_PREFIX": names.prefix,
        "RUNFOLD_RUN_PARTITIONS": str(PARTITIONS), "RUNFOLD_BLOBS": str(folder / "blobs"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    (folder / "effects").touch()
    with ModelServer({}) as model, Stack(environment) as stack:
        made = World(bootstrap, names, folder, model, stack)
        try:
            yield made
        finally:
            made.close()
            delete_topics(bootstrap, names)
