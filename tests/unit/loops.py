"""An executor's own loop on a Kafka in memory, one step at a time: for tests of what the loop does with a record.

What only many steps and faults together bring out is for the simulation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from runfold.adapters.memory import MemoryKafka, MemoryOutbox, MemoryRunLog
from runfold.adapters.scripted_model import FunctionModel
from runfold.core.restore import Restoring
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter
from runfold.events.types import Event, Item, ModelReplied, RunRequested, ToolReported
from runfold.executor.build import build_executor
from runfold.executor.loop import Executor
from runfold.executor.settings import ExecutorSettings
from runfold.ports import ModelOutcome, ModelRequest, ToolStart
from tests.builders import Offers

CODEC = Codec()
STEPS_MAX = 200
PEOPLE = HeaderWriter("/test")


@dataclass
class Clock:
    now_ms: int = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def done(request: ModelRequest) -> ModelOutcome:
    """The model answers at once, and wants no tools."""
    return ModelReplied(model_call=request.call, items=[Item(kind="text", text="done")], finish_reason="stop")


@dataclass
class SilentTools:
    """Starts what it is told to start, and reports only when the test does."""

    started: list[ToolStart] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    is_closed: bool = False

    def start(self, start: ToolStart, done: Callable[[ToolReported], None]) -> ToolReported | None:
        self.started.append(start)
        return None

    def stop(self, dispatch: str) -> None:
        self.stopped.append(dispatch)

    def close(self) -> None:
        self.is_closed = True


class Place:
    """One partition, and the executors that were started on it, one after the other."""

    def __init__(self, partitions: int = 1) -> None:
        self.clock = Clock()
        self.kafka = MemoryKafka(partitions, self.clock.monotonic_ms)
        self.tools = SilentTools()
        self.told: list[str] = []
        self.log: MemoryRunLog | None = None

    def executor(
        self,
        codec: Codec = CODEC,
        *,
        model: Callable[[ModelRequest], ModelOutcome] = done,
        settings: ExecutorSettings | None = None,
    ) -> Executor:
        """A new one, which owns the partition from its next step on; the one before is gone without a word."""
        if self.log is not None:
            self.log.crash()
        log = self.log = MemoryRunLog(self.kafka, "one")
        executor = build_executor(
            log=log,
            outbox=MemoryOutbox(log),
            clock=self.clock,
            codec=codec,
            catalog=Offers(),
            model=FunctionModel(model),
            tools={"inline": self.tools},
            settings=settings or ExecutorSettings(name="one"),
            topic="run-events",
            tell=self.told.append,
        )
        executor.open()
        self.kafka.assign(0, log)
        return executor

    # ---- the log

    def put(self, run_id: str, event: Event, event_id: str, value: bytes | None = None) -> None:
        """A fact of somebody's."""
        headers = PEOPLE.fact(type(event).__name__, event_id, self.clock.now_ms)
        self.kafka.produce(run_id, CODEC.encode(event) if value is None else value, headers, partition=0)

    def request(self, run_id: str, event_id: str = "", **task: object) -> None:
        asked = RunRequested(**{"task_id": run_id, "agent": "agent", "input": "go", **task})
        self.put(run_id, asked, event_id or f"{run_id}-asked")

    def types(self, run_id: str = "") -> list[str]:
        """What stands in the log, of one run or of the partition itself."""
        records = self.kafka.partitions[0].records
        kinds = [(each.key, dict(each.headers or [])["ce_type"].decode()) for each in records]
        return [kind.removeprefix("runfold.") for key, kind in kinds if (key or b"") == run_id.encode()]

    @property
    def completed(self) -> set[str]:
        return set(self.kafka.completions)


def settle(executor: Executor) -> None:
    """Step until nothing more happens by itself."""
    quiet = 0
    for _ in range(STEPS_MAX):
        quiet = 0 if executor.step(0) else quiet + 1
        if quiet == 3:
            return
    raise AssertionError("it never comes to rest")


def restoring_of(executor: Executor) -> Restoring | None:
    return executor.ownership.partitions[0].restoring
