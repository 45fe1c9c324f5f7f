"""The recorded runs of `../shared/cases`, replayed: `python -m tests.cases.replay [--json] [--only NAME]`.

Every run goes the real way: a TaskRequested on Kafka, intake, executor, the HTTP model server (in a process of its
own), tools that return what was recorded, a TaskCompleted. Users of interactive runs are played by this program: when
a run awaits a message, the next one is appended to run-events, and with the last one a CloseRequested. What became of
each run is read back from the log and from the requests that the server got, and compared by `comparison.py`.

A recording that ends without an answer makes one call more than was recorded. The server answers HTTP 400, and the
run must end as failed, saying so. A second pass at default limits must end the run of 90 calls by its token limit.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.adapters.agents import Agents
from runfold.adapters.blobs import DirectoryBlobs
from runfold.adapters.clock import SystemClock
from runfold.adapters.inline_tools import InlineTools
from runfold.adapters.kafka import KafkaOutbox, KafkaRunLog
from runfold.adapters.openai_chat import ChatModel, ChatOptions
from runfold.adapters.toolbox import Tool, Toolbox, ToolContext
from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics
from runfold.core.limits import INLINE_BYTES_MAX
from runfold.dev.embedded_kafka import EmbeddedKafka
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter, new_event_id
from runfold.events.types import (
    CloseRequested,
    ContextLoaded,
    Event,
    MessageReceived,
    ModelCallStarted,
    ModelReplied,
    PhaseEntered,
    RunFinished,
    RunRequested,
    TaskCompleted,
    TaskRequested,
    ToolReported,
    ToolSettled,
    TurnAdvanced,
)
from runfold.executor.build import build_executor
from runfold.executor.settings import ExecutorSettings
from runfold.intake import main as intake
from runfold.ports import ToolStart
from runfold.settings import Settings
from tests.cases.comparison import differences, sent_differences
from tests.cases.recordings import CASES, SHARED, Recording, call_problems, recordings

PARTITIONS = 4
AT_ONCE = 16
SILENCE_S = 120.0  # nothing in the log for so long: something hangs
DAY_MS = 24 * 3_600_000
RAISED = {"tool_calls": 10_000, "tokens": 1_000_000_000, "turn_ms": DAY_MS, "run_ms": DAY_MS, "idle_ms": DAY_MS}
LONGEST_CALLS = 90  # of the run that the second pass plays
ROOT = Path(__file__).parents[2]


@dataclass
class Replayed:
    """What became of one run, read back from the log and the model server."""

    items: list[dict[str, Any]] = field(default_factory=list)
    finished: RunFinished | None = None
    completed: TaskCompleted | None = None
    calls: int = 0  # tools that reported
    sent: list[dict[str, Any]] = field(default_factory=list)  # the last history that the model was sent
    positions: list[int] = field(default_factory=list)  # of each request, in replies said before
    order_problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._messages: dict[str, str] = {}
        self._outputs: dict[tuple[str, int], str] = {}

    def take(self, event: Event) -> None:
        """The next event of the run."""
        match event:
            case RunRequested():
                self.items.append({"role": "user", "text": event.input})
            case ContextLoaded() if event.instructions:
                self.items.insert(0, {"role": "system", "text": event.instructions})
            case MessageReceived():
                self._messages[event.command_id] = event.text
            case ModelCallStarted():
                self.items += [{"role": "user", "text": self._messages[command]} for command in event.messages]
            case ModelReplied():
                text = "".join(item.text for item in event.items if item.kind == "text")
                calls = [{"name": i.name, "arguments": i.arguments} for i in event.items if i.kind == "call"]
                self.items.append({"role": "assistant", "text": text, "calls": calls})
            case ToolReported():
                self.calls += 1
                self._outputs[event.model_call, event.position] = event.output
            case ToolSettled():
                self._outputs[event.model_call, event.position] = f"[{event.outcome}] {event.message}"
            case TurnAdvanced():
                outputs = [self._outputs[event.model_call, position] for position in event.calls]
                self.items += [{"role": "tool", "output": output} for output in outputs]
            case RunFinished():
                self.finished = event


class RecordedTools(InlineTools):
    """Gives each tool the place of its call in the recording: which batch of the run, and where in it."""

    def __init__(self, toolbox: Toolbox, blobs: DirectoryBlobs, places: dict[str, tuple[int, int]]) -> None:
        super().__init__(toolbox, blobs, "replay", output_bytes_max=INLINE_BYTES_MAX)
        self._places = places
        self._batches: dict[str, list[str]] = {}

    def start(self, start: ToolStart, done: Callable[[ToolReported], None]) -> ToolReported | None:
        batches = self._batches.setdefault(start.run_id, [])
        if start.model_call not in batches:
            batches.append(start.model_call)
        self._places[start.dispatch] = (batches.index(start.model_call), start.position)
        return super().start(start, done)


class Replay:
    """Everything that runs is started by `with`; `play` plays tasks on it."""

    def __init__(self, servers: str, known: list[Recording], folder: Path) -> None:
        self._known = {recording.name: recording for recording in known}
        self._folder = folder
        self._codec = Codec()
        self._headers = HeaderWriter("/runfold/replay")
        self._stop = threading.Event()
        self._problems: list[BaseException] = []
        self._users: dict[str, list[str]] = {}  # what each run's user has yet to say
        self._runs: dict[str, Replayed] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._owners: dict[str, Recording] = {}
        self._names = TopicNames(f"replay-{uuid4().hex[:8]}")
        ensure_topics(servers, self._names.prefix, run_partitions=PARTITIONS, task_partitions=PARTITIONS)
        self._settings = Settings(
            bootstrap_servers=servers, topic_prefix=self._names.prefix, run_partitions=PARTITIONS, blobs=folder
        )
        self._producer = Producer({
            "bootstrap.servers": servers, "partitioner": "murmur2_random", "linger.ms": 0, "enable.idempotence": True,
            "log_level": 0,
        })  # fmt: skip
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "-", "fetch.wait.max.ms": 50})
        topics = (self._names.events, self._names.completions)
        self._consumer.assign([TopicPartition(topic, n, 0) for topic in topics for n in range(PARTITIONS)])

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(delete_topics, self._settings.bootstrap_servers, self._names)
            stack.callback(self._consumer.close)
            stack.callback(self._producer.flush, 30)
            self._base_url = stack.enter_context(self._model_server())
            for work in (self._intake, self._executor):
                thread = threading.Thread(target=self._guarded, args=(work,), name=work.__name__)
                stack.callback(thread.join)
                thread.start()
            stack.callback(self._stop.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, tasks: dict[str, Recording], limits: dict[str, int]) -> dict[str, Replayed]:
        """Play these recordings under these task ids, some at once. Answers what became of each."""
        waiting, active, ended = list(tasks), set[str](), 0
        self._owners |= tasks
        heard_at = time.monotonic()
        while waiting or active:
            while waiting and len(active) < AT_ONCE:
                task_id = waiting.pop(0)
                active.add(task_id)
                self._request(task_id, tasks[task_id], limits)
            for message in self._consumer.consume(500, 0.05):
                heard_at = time.monotonic()
                run_id, event = (message.key() or b"").decode(), self._codec.decode(message.value() or b"")
                run = self._runs.get(run_id)
                if run is None:
                    continue  # what belongs to a partition
                if isinstance(event, TaskCompleted):
                    run.completed = event
                else:
                    run.take(event)
                    self._answer(run_id, event)
                if run_id in active and run.completed is not None and run.finished is not None:
                    active.remove(run_id)
                    ended += 1
                    _progress(f"{ended} of {len(tasks)}: {run_id} {run.finished.status} {run.finished.kind}")
            if self._problems:
                raise self._problems[0]
            if time.monotonic() - heard_at > SILENCE_S:
                raise TimeoutError(f"no event within {SILENCE_S:g} s; these runs did not end: {sorted(active)}")
        self._add_requests(tasks)
        return {task_id: self._runs[task_id] for task_id in tasks}

    def _request(self, task_id: str, recording: Recording, limits: dict[str, int]) -> None:
        self._runs[task_id] = Replayed()
        if recording.interactive:
            self._users[task_id] = recording.messages[1:]
        definition = {"model": recording.name, "instructions": recording.instructions, "tools": recording.tools}
        task = TaskRequested(
            task_id=task_id,
            definition=json.dumps(definition),
            input=recording.messages[0],
            interactive=recording.interactive,
            limits=limits,
        )
        self._produce(self._names.requests, task_id, task)

    def _answer(self, run_id: str, event: Event) -> None:
        """Say what the user says next, if that is what the run waits for."""
        left = self._users.get(run_id)
        if not isinstance(event, PhaseEntered) or event.phase != "awaiting_message" or left is None:
            return
        if left:
            self._produce(self._names.events, run_id, MessageReceived(command_id=new_event_id(), text=left.pop(0)))
        if not left:
            del self._users[run_id]
            self._produce(self._names.events, run_id, CloseRequested(command_id=new_event_id()))

    def _produce(self, topic: str, key: str, event: Event) -> None:
        headers = self._headers.fact(type(event).__name__, new_event_id(), int(time.time() * 1000))
        self._producer.produce(topic, self._codec.encode(event), key, headers=headers)
        self._producer.poll(0)

    def _add_requests(self, tasks: dict[str, Recording]) -> None:
        for line in (self._folder / "requests.jsonl").read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            if note["run"] not in tasks:
                continue
            run = self._runs[note["run"]]
            run.sent += note["new"]
            run.positions.append(note["position"])
            if note["problem"] is not None:
                run.order_problems.append(f"request {len(run.positions)}: {note['problem']}")

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  raised again by the thread that plays
            self._problems.append(error)

    def _intake(self) -> None:
        intake.run(self._settings, self._stop)

    def _executor(self) -> None:
        blobs = DirectoryBlobs(self._folder)
        names = sorted({name for recording in self._known.values() for name in recording.tools})
        toolbox = Toolbox([self._tool(name) for name in names])
        model = ChatModel(ChatOptions(base_url=self._base_url, api_key="none"), blobs)
        servers = self._settings.bootstrap_servers
        outbox = KafkaOutbox(servers, self._names)
        log = KafkaRunLog(servers, self._names, group=f"{self._names.prefix}.executor", name="replay", outbox=outbox)
        executor = build_executor(
            log=log,
            outbox=outbox,
            clock=SystemClock(),
            codec=Codec(),
            catalog=Agents([], toolbox),
            model=model,
            tools={"inline": RecordedTools(toolbox, blobs, self._places)},
            settings=ExecutorSettings(name="replay"),
            topic=self._names.events,
            tell=_progress,
        )
        executor.open()
        try:
            while not self._stop.is_set():
                executor.step()
        finally:
            executor.close()
            model.close()

    def _tool(self, name: str) -> Tool:
        def replayed(*, call_context: ToolContext, **_: Any) -> str:
            batch, position = self._places[call_context.dispatch]
            return self._owners[call_context.run_id].batches[batch][position]

        return Tool(
            name=name,
            description="Returns what was recorded.",
            parameters={"type": "object"},
            function=replayed,
            context_parameter="call_context",
        )

    @contextlib.contextmanager
    def _model_server(self) -> Iterator[str]:
        script = self._folder / "script.json"
        script.write_text(json.dumps({name: _scripted(known) for name, known in self._known.items()}))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cases.recording_server", str(script), str(self._folder / "requests.jsonl")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "services"), str(ROOT)])},
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.communicate()


def _scripted(recording: Recording) -> list[dict[str, Any]]:
    return [{key: reply[key] for key in ("text", "calls", "finish")} for reply in recording.replies]


def problems_of(recording: Recording, run: Replayed) -> list[str]:
    """Where a run is not its recording."""
    found = [f"log: {problem}" for problem in differences(recording.items, run.items)]
    unsent = 1 if recording.is_answered else 0  # the answer itself is never sent back
    found += [f"sent: {problem}" for problem in sent_differences(recording.items, run.sent)]
    if len(run.sent) != len(recording.items) - unsent:
        found.append(f"sent: {len(run.sent)} messages instead of {len(recording.items) - unsent}")
    found += [f"order: {problem}" for problem in run.order_problems]
    requests = len(recording.replies) + 1 - unsent
    if sorted(set(run.positions)) != list(range(requests)) or run.positions != sorted(run.positions):
        found.append(f"requests after {run.positions} replies instead of {requests} in a row")
    if run.calls != recording.calls:
        found.append(f"{run.calls} calls ran, {recording.calls} are recorded")
    if run.finished is None or run.completed is None:
        return [*found, "it did not end"]
    ended, end = run.finished, f"it ended as {run.finished.status} {run.finished.kind}: {run.finished.reason}"
    if recording.is_answered:
        if ended.status != "completed" or run.completed.result != recording.items[-1]["text"]:
            found.append(f"{end}; its result is {run.completed.result!r}")
    elif ended.status != "failed" or f"ends after {len(recording.replies)} replies" not in ended.reason:
        found.append(f"{end}; it should have failed at the end of its recording")
    if (run.completed.status, run.completed.kind, run.completed.reason) != (ended.status, ended.kind, ended.reason):
        found.append(f"{end}, and was completed as {run.completed.status} {run.completed.kind}")
    return found


@dataclass
class Outcome:
    """Both passes."""

    problems: dict[str, list[str]]  # by recording; empty where it is equal
    calls: dict[str, list[int]]  # of each file's runs
    call_problems: list[str]  # where they are not those of cases/README.md
    limited: RunFinished | None  # how the longest run ended at default limits; None if it was not played
    seconds: float

    @property
    def different(self) -> int:
        return sum(map(bool, self.problems.values()))

    @property
    def is_good(self) -> bool:
        limited = self.limited is None or (self.limited.status, self.limited.kind) == ("limit_exceeded", "token_limit")
        return not self.different and not self.call_problems and limited

    def line(self) -> dict[str, Any]:
        return {
            "runs": len(self.problems),
            "calls": sum(map(sum, self.calls.values())),
            "equal": len(self.problems) - self.different,
            "different": self.different,
            "seconds": round(self.seconds, 1),
        }


def replay(servers: str, only: str = "") -> Outcome:
    """Both passes over all recordings, or over those whose name holds `only`."""
    every = recordings()
    chosen = {recording.name: recording for recording in every if only in recording.name}
    longest = {f"{each.name}-limited": each for each in chosen.values() if each.calls == LONGEST_CALLS}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Replay(servers, every, Path(folder)) as stage:
        runs = stage.play(chosen, RAISED)
        seconds = time.monotonic() - began
        limited = [run.finished for run in stage.play(longest, {}).values()]
    calls: dict[str, list[int]] = {}
    for name, recording in chosen.items():
        calls.setdefault(recording.file, []).append(runs[name].calls)
    return Outcome(
        problems={name: problems_of(recording, runs[name]) for name, recording in chosen.items()},
        calls=calls,
        call_problems=[] if only else call_problems(calls),
        limited=limited[0] if limited else None,
        seconds=seconds,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/replay-cases", description="Replays the recorded runs on Kafka.")
    parser.add_argument("--json", action="store_true", help="JSON lines on standard output")
    parser.add_argument("--only", default="", metavar="NAME", help="runs whose name holds this")
    options = parser.parse_args(arguments)
    if not CASES.is_dir():
        print(f"NOT RUN: there are no recorded runs here, {CASES} does not exist", file=sys.stderr)
        return 1 if SHARED.is_dir() else 0
    with contextlib.ExitStack() as stack:
        given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        outcome = replay(given or stack.enter_context(EmbeddedKafka()).bootstrap_servers, options.only)
    _print(outcome, as_json=options.json)
    return 0 if outcome.is_good and outcome.problems else 1


def _print(outcome: Outcome, *, as_json: bool) -> None:
    lines: list[dict[str, Any]] = [{"run": name, "different": what} for name, what in outcome.problems.items() if what]
    lines += [{"file": file, "calls": sum(calls), "calls_per_run": calls} for file, calls in outcome.calls.items()]
    lines += [{"problem": problem} for problem in outcome.call_problems]
    if outcome.limited is not None:
        ended = outcome.limited
        lines.append({"at_default_limits": ended.status, "kind": ended.kind, "reason": ended.reason})
    for line in [*lines, outcome.line()]:
        print(json.dumps(line) if as_json else "  ".join(f"{key} {value}" for key, value in line.items()))


def _progress(text: str) -> None:
    print(f"replay: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
