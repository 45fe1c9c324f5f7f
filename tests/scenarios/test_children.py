"""Tasks that a run delegates: they end with it, and how they end is a result for it."""

import json
from typing import Any

import pytest

from runfold.core.children import child_id
from runfold.core.waits import status_of
from runfold.events.envelope import new_event_id
from runfold.events.types import CancelRequested, RunRequested
from tests.scenarios.replies import DONE, call, calls
from tests.scenarios.world import Run, World

pytestmark = [pytest.mark.kafka, pytest.mark.scenario("S26"), pytest.mark.requirement("R28")]


def family(here: World, *, parent: list[Any], child: list[Any], **task: Any) -> Run:
    """A run that delegates; its children say `child`, since they inherit its definition and with it the model."""
    model = f"child-{new_event_id()[:12]}"
    here.model.app.add(model, child)
    return here.run(parent, definition=json.dumps({"model": model}), **task)


def child_of(run: Run, position: int = 0) -> Run:
    """The task that this run delegated, as it stands in the log."""
    started = run.until("ToolDispatchStarted", position + 1)
    return Run(run.world, child_id(run.id, started.body.model_call, position))


def early_parent(here: World) -> Run:
    """A run that delegates, asked for without the intake."""
    parent = Run(here, f"run-{new_event_id()[:12]}")
    here.model.app.add(parent.id, [DELEGATES, DONE])
    parent.append(RunRequested(task_id=parent.id, agent="worker", input="go"))
    return parent


DELEGATES = calls(call("delegate", task="help"))


@pytest.mark.parametrize("how", ["by a person", "by whoever asked"])
def test_a_parent_is_cancelled_while_its_family_works(here: World, how: str) -> None:
    """Children and grandchildren end as cancelled: none of them calls its model again."""
    gate = here.gate()
    here.model.app.add("leaf", [calls(call("hold", gate=gate)), DONE])
    parent = family(here, parent=[DELEGATES, DONE], child=[calls(call("delegate", task="more", agent="leaf")), DONE])
    child = child_of(parent)
    grandchild = child_of(child)
    grandchild.until_begun(1)
    assert [run.events("RunRequested")[0].depth for run in (parent, child, grandchild)] == [0, 1, 2]
    assert [status_of(run.state()) for run in (parent, child, grandchild)] == [*["waiting_child"] * 2, "running"]
    parent.cancel() if how == "by a person" else parent.withdraw()
    for run in (parent, child, grandchild):
        assert run.over().status == "cancelled"
    here.open(gate)
    grandchild.until("LateReportRecorded")
    for run in (parent, child, grandchild):
        run.nothing_follows()
        assert len(run.seen("ModelCallStarted")) == 1


def test_a_parent_is_cancelled_while_its_child_is_being_made(here: World) -> None:
    """The child comes into being after its parent's end: it ends as cancelled, and nothing of it ever runs."""
    with here.intake_stopped():
        parent = early_parent(here)
        child = child_of(parent)
        held = calls(call("note", text="a"), until_file=str(here.folder / here.gate()))
        here.model.app.add(child.id, [held])
        parent.cancel()
        assert parent.over().status == "cancelled"
        assert child.records == []
    assert child.over().status == "cancelled"
    child.nothing_follows()
    assert child.done() == []


def test_a_child_is_cancelled_before_it_is_made(here: World) -> None:
    """A cancel that comes first counts; its parent is told, and goes on."""
    with here.intake_stopped():
        parent = early_parent(here)
        child = child_of(parent)
        child.cancel()
    assert child.over().status == "cancelled"
    assert child.seen("ModelCallStarted") == []
    assert parent.over().status == "completed"
    assert "ended as cancelled: not needed any more" in parent.results(1)[0]


@pytest.mark.parametrize("end", ["cancelled", "failed", "limit_exceeded"])
def test_the_end_of_a_child_is_a_result(here: World, end: str) -> None:
    """However it ends, its parent has an error result and goes on; siblings are not touched."""
    gate = here.gate()
    holds = calls(call("hold", gate=gate))
    replies = {
        "cancelled": [holds],
        "failed": [holds, {"text": "x", "fault": {"status": 401, "times": None}}],
        "limit_exceeded": [holds, calls(call("note", text="again")), {"text": "I got half way."}],
    }
    parent = family(
        here,
        parent=[calls(*DELEGATES["calls"], call("note", text="b")), DONE],
        child=replies[end],
        limits={"tool_calls": 2},
    )
    child = child_of(parent)
    child.until_begun(1)
    if end == "cancelled":
        child.append(CancelRequested(command_id=new_event_id(), reason="by itself"))
    here.open(gate)
    assert child.over().status == end
    completed = parent.over()
    assert completed.status == "completed"
    told, sibling = parent.results(1)
    assert f"ended as {end}" in told
    assert sibling == "noted b"
    assert completed.totals.tool_errors == 1


def test_an_answer_of_a_child(here: World) -> None:
    """Is the result, and what it used is charged to its parent."""
    parent = family(
        here, parent=[DELEGATES, DONE], child=[calls(call("note", text="c")), {"text": "the child says 42"}]
    )
    completed = parent.over()
    assert completed.status == "completed"
    assert parent.results(1) == ["the child says 42"]
    child = child_of(parent).over()
    assert child.parent == parent.id
    assert completed.totals.tool_calls == 1 + child.totals.tool_calls == 2
    assert completed.totals.tokens > child.totals.tokens > 0
