"""Small parts of the executor, each by itself: what it remembers, and for how long."""

from dataclasses import dataclass, field

import pytest

from runfold.adapters.memory import MemoryKafka, MemoryRunLog
from runfold.core.state import RunState
from runfold.events.codec import Codec
from runfold.events.types import ToolReported
from runfold.executor.claims import Claims
from runfold.executor.partition import Partition
from runfold.executor.run import new_run
from runfold.executor.writer import Writer
from runfold.ports import ToolStart
from tests.builders import call, dispatched


@dataclass
class Clock:
    now_ms: int = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def writer(clock: Clock) -> tuple[Writer, MemoryRunLog]:
    log = MemoryRunLog(MemoryKafka(1, clock.wall_ms), "e", held=True)
    return Writer(log=log, codec=Codec(), clock=clock, source="/e"), log


REPORT = ToolReported(model_call="m", position=0, dispatch="d", source="e", outcome="succeeded", output="dear")


@pytest.mark.requirement("R12")
def test_a_result_outlives_a_long_outage() -> None:
    """Kafka is away for longer than facts of other people's partitions are remembered: ours is sent again and again."""
    clock = Clock()
    mine, log = writer(clock)
    mine.fact(0, "run", REPORT, 0)
    clock.now_ms = 1_000_000
    mine.forget_unread(120_000, {0})
    mine.send_again(0, "run")
    assert len(log.queue) == 2
    mine.forget_unread(120_000, set())
    assert mine.sent, "it was sent just now"
    clock.now_ms = 2_000_000
    mine.forget_unread(120_000, set())
    assert not mine.sent


def test_a_timer_holds_no_run_that_ended() -> None:
    """Whatever it was set to: a transcript would stay in memory until then."""
    partition = Partition(number=0)
    run = new_run(RunState(run_id="run"), 0, 0, 0)
    partition.runs["run"] = run
    partition.wake(run, 10_000_000)
    assert all(type(part) in (int, str) for timer in partition._timers for part in timer)
    del partition.runs["run"]
    assert partition.due(10_000_000) == []


@dataclass
class NoRoom:
    """A place for processes whose disk is full."""

    identity: str = "host"
    started: list[ToolStart] = field(default_factory=list)

    def has_workspace(self, run_id: str, sandbox: str) -> bool:
        return True

    def new_workspace(self, run_id: str) -> str:
        raise OSError(28, "No space left on device")

    def start(self, start: ToolStart, done: object) -> None:
        self.started.append(start)

    def adopt(self, start: ToolStart, process: str, done: object) -> bool:
        return False

    def stop(self, dispatch: str) -> None: ...


@pytest.mark.requirement("R17")
def test_a_full_disk_is_an_outcome_for_the_model() -> None:
    """No fault of the run, and nothing that sets it aside."""
    clock = Clock()
    story = dispatched(call("run"))
    run = new_run(story.state, 0, 0, 0)
    reports: list[ToolReported] = []
    claims = Claims(writer(clock)[0], "e", {"process": NoRoom()})  # type: ignore[dict-item]
    for _ in range(3):
        claims.tend(run, reports.append, 0)
    (report,) = reports
    assert report.outcome == "failed"
    assert "No space left on device" in report.output
