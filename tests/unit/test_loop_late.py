"""Reports that come after their run's end: recorded as late by whoever owns the partition, once."""

import pytest

from runfold.events.types import CancelRequested, Item, LateReportRecorded, ModelReplied, ToolReported
from runfold.executor.loop import Executor
from runfold.executor.settings import ExecutorSettings
from runfold.ports import ModelOutcome, ModelRequest
from tests.unit.loops import CODEC, Place, settle

LATER_MS = 120_000


def wants_a_tool(request: ModelRequest) -> ModelOutcome:
    return ModelReplied(model_call=request.call, items=[Item(kind="call", name="read")], finish_reason="tool_calls")


def ended(place: Place, executor: Executor, run: str = "run") -> ToolReported:
    """The run is cancelled while its tool runs, and is over; answers what the tool will say."""
    settle(executor)
    place.request(run)
    settle(executor)
    start = place.tools.started[-1]
    place.put(run, CancelRequested(command_id="c"), "cancel")
    settle(executor)
    assert place.types(run)[-1] == "TaskReported"
    return ToolReported(
        model_call=start.model_call, position=0, dispatch=start.dispatch, source="one", outcome="succeeded", output="ok"
    )


def late(place: Place, run: str = "run") -> list[str]:
    """Which reports are recorded as late."""
    bodies = [CODEC.decode(each.value or b"") for each in place.kafka.partitions[0].records if each.key == run.encode()]
    return [body.report for body in bodies if isinstance(body, LateReportRecorded)]


@pytest.mark.requirement("R12")
def test_a_report_that_no_owner_read_is_recorded_as_late_by_the_next() -> None:
    """It came when nobody was there, after the run's end."""
    place = Place()
    report = ended(place, place.executor(model=wants_a_tool))
    place.put("run", report, "r1")
    settle(place.executor())
    assert late(place) == ["r1"]
    settle(place.executor())
    assert late(place) == ["r1"]


@pytest.mark.requirement("R12")
def test_a_report_beside_the_end_is_recorded_as_late_too() -> None:
    """Between RunFinished and TaskReported: the run's last owner had not read it."""
    place = Place()
    report = ended(place, place.executor(model=wants_a_tool))
    records = place.kafka.partitions[0].records
    end = records.pop()
    place.put("run", report, "r1")
    end.offset = len(records)
    records.append(end)
    settle(place.executor())
    assert late(place) == ["r1"]


@pytest.mark.requirement("R12")
def test_a_late_report_of_a_run_that_began_before_the_mark() -> None:
    """Of the run itself only the end is read."""
    place = Place()
    executor = place.executor(model=wants_a_tool)
    report = ended(place, executor)
    place.put("run", report, "r1")
    end = next(each.offset for each in place.kafka.partitions[0].records if b"runfold.RunFinished" in _types(each))
    place.kafka.truncate(0, end)
    settle(place.executor())
    assert late(place) == ["r1"]


def _types(delivery: object) -> list[bytes]:
    return [value for name, value in getattr(delivery, "headers", None) or [] if name == "ce_type"]


@pytest.mark.requirement("R12")
def test_a_late_report_of_a_run_that_a_checkpoint_carried() -> None:
    """Its state is rebuilt from the checkpoint; it has ended all the same."""
    place = Place()
    settings = ExecutorSettings(name="one", checkpoint_age_ms=1_000)
    executor = place.executor(model=wants_a_tool, settings=settings)
    settle(executor)
    place.request("run")
    settle(executor)
    start = place.tools.started[-1]
    for run in ("later", "much-later"):
        place.clock.now_ms += LATER_MS // 2
        place.request(run, agent="nobody")
        settle(executor)
    executor.tidy()
    settle(executor)
    assert "RunCheckpointed" in place.types("run")
    executor.tidy()
    place.put("run", CancelRequested(command_id="c"), "cancel")
    settle(executor)
    assert place.types("run")[-1] == "TaskReported"
    report = ToolReported(
        model_call=start.model_call, position=0, dispatch=start.dispatch, source="one", outcome="succeeded", output="ok"
    )
    place.put("run", report, "r1")
    settle(place.executor())
    assert late(place) == ["r1"]


def test_what_is_recorded_already_is_not_recorded_again() -> None:
    """By the owner who was there, or by the one who came."""
    place = Place()
    executor = place.executor(model=wants_a_tool)
    report = ended(place, executor)
    place.put("run", report, "r1")
    settle(executor)
    assert late(place) == ["r1"]
    place.put("run", report, "r1")
    settle(place.executor())
    assert set(late(place)) == {"r1"}
    before = len(late(place))
    settle(place.executor())
    assert len(late(place)) == before
