"""What people do to a run while it works: cancel, approve, answer, say something; at the right time and too late.

That the second of two deciders is told so is the gateway's part; here is what becomes of the run.
"""

import pytest

from runfold.core.waits import status_of
from runfold.events.envelope import new_event_id
from runfold.events.types import ApprovalDecided, CloseRequested
from tests.scenarios.replies import DONE, call, calls
from tests.scenarios.world import ROUNDING_MS, Message, World

pytestmark = pytest.mark.kafka


def users(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


@pytest.mark.scenario("S16")
@pytest.mark.requirement("R10")
@pytest.mark.requirement("R27")
@pytest.mark.parametrize("how", ["by a person", "by whoever asked"])
def test_cancelled_while_a_tool_runs(here: World, how: str) -> None:
    """The run ends as cancelled. The result that comes later is recorded as late, and wakes nothing."""
    gate = here.gate()
    run = here.run([calls(call("hold", gate=gate), call("note", text="b")), DONE])
    run.until("ToolReported")
    run.until_begun(2)
    run.cancel() if how == "by a person" else run.withdraw()
    completed = run.over()
    assert (completed.status, completed.reason) == ("cancelled", "not needed any more")
    here.open(gate)
    run.until("LateReportRecorded")
    run.nothing_follows()
    assert len(run.requests) == 1
    assert run.outcomes() == ["succeeded", "interrupted"]
    assert "its effect is unknown" in run.events("ToolSettled")[0].message
    assert run.over().status == "cancelled"


@pytest.mark.scenario("S16")
@pytest.mark.requirement("R27")
def test_a_cancelled_tool_is_told(here: World) -> None:
    """One that listens stops: nobody waits for it."""
    run = here.run([calls(call("heed", gate=here.gate())), DONE])
    run.until_begun(1)
    run.cancel()
    assert run.over().status == "cancelled"
    run.until_begun(2)
    assert run.done() == ["heed", "stopped"]


@pytest.mark.scenario("S19")
@pytest.mark.requirement("R25")
@pytest.mark.parametrize("first", [True, False], ids=["yes", "no"])
@pytest.mark.parametrize("second", [True, False], ids=["then yes", "then no"])
def test_an_approval_decided_twice(here: World, first: bool, second: bool) -> None:
    """From two tabs: the first decision counts. What was approved runs once, what was rejected never."""
    run = here.run([calls(call("pay", amount=5)), DONE])
    assert run.until("ApprovalRequired").body.reason == "money leaves the house"
    assert (status_of(run.state()), run.done()) == ("waiting_approval", [])
    run.decide(approved=first, sender="tab 1", reason="too much")
    run.decide(approved=second, sender="tab 2", reason="still too much")
    completed = run.over()
    assert completed.status == "completed"
    assert run.results(1) == ["paid 5" if first else "Not started: a person rejected this call: too much."]
    run.nothing_follows()
    assert run.done() == (["pay"] if first else [])
    assert completed.totals.tool_errors == 0


@pytest.mark.scenario("S19")
def test_a_question_answered_twice(here: World) -> None:
    """The first answer is the result."""
    run = here.run([calls(call("ask", question="which?")), DONE])
    run.until("ToolDispatchStarted")
    for text in ("this one", "no, that one"):
        run.answer(0, text)
    assert run.over().status == "completed"
    assert run.results(1) == ["this one"]


@pytest.mark.scenario("S20")
@pytest.mark.requirement("R25")
def test_an_approval_that_comes_too_late(here: World) -> None:
    """It expired, which the model is told as that; the approval stands in the log, and starts nothing."""
    gate = here.gate()
    run = here.run([calls(call("pay", amount=5)), calls(call("hold", gate=gate)), DONE], limits={"approval_ms": 300})
    settled = run.until("ToolSettled")
    assert settled.time_ms - run.seen("ApprovalRequired")[0].time_ms >= 300 - ROUNDING_MS
    run.decide(approved=True)
    run.until_begun(1)
    here.open(gate)
    assert run.over().status == "completed"
    assert run.outcomes()[0] == "expired"
    assert "nobody approved this call within 0.3 s" in run.results(1)[0]
    assert run.done() == ["hold"]
    assert len(run.seen("ApprovalDecided")) == 1
    run.decide(approved=True)  # once more, after the end
    run.nothing_follows()
    assert run.done() == ["hold"]


@pytest.mark.scenario("S20")
@pytest.mark.requirement("R25")
def test_approvals_of_something_else(here: World) -> None:
    """For nothing that there is, for another run's call, for other arguments than were shown: none of them counts."""
    run, other = [here.run([calls(call("pay", amount=amount)), DONE]) for amount in (5, 6)]
    asked, others = run.until("ApprovalRequired"), other.until("ApprovalRequired")
    digest = asked.body.arguments_sha256
    for approval, shown in (
        ("nothing", digest),
        ("", digest),
        (others.id, digest),
        (asked.id, others.body.arguments_sha256),
    ):
        run.append(ApprovalDecided(command_id=new_event_id(), approval=approval, arguments_sha256=shown, approved=True))
    here.pass_by(asked.partition)
    here.pass_by(others.partition)
    assert run.done() == other.done() == []
    assert run.outcomes() == other.outcomes() == []
    run.decide(approved=False)
    other.decide(approved=True)
    assert run.over().status == other.over().status == "completed"
    assert (run.done(), other.done()) == ([], ["pay"])


@pytest.mark.scenario("S20")
@pytest.mark.requirement("R25")
def test_a_rule_over_the_arguments(here: World) -> None:
    """Small amounts are nobody's business, large ones are."""
    run = here.run([calls(call("spend", amount=100), call("spend", amount=101)), DONE])
    run.until("ToolReported")
    assert [each.position for each in run.events("ApprovalRequired")] == [1]
    run.decide(approved=True)
    assert run.over().status == "completed"
    assert run.results(1) == ["spent 100", "spent 101"]


@pytest.mark.scenario("S22")
@pytest.mark.requirement("R25")
@pytest.mark.requirement("R17")
@pytest.mark.parametrize("order", ["free first", "free last"])
def test_one_free_call_and_one_that_is_rejected(here: World, order: str) -> None:
    """The free one need not wait. Its result and the rejection go back in call order; it is not run again."""
    free, asking = call("note", text="a"), call("pay", amount=5)
    run = here.run([calls(*([free, asking] if order == "free first" else [asking, free])), DONE])
    run.until("ToolReported")
    assert len(run.requests) == 1
    run.decide(approved=False, reason="no")
    completed = run.over()
    expected = ["noted a", "Not started: a person rejected this call: no."]
    assert run.results(1) == (expected if order == "free first" else expected[::-1])
    assert run.done() == ["note"]
    assert (completed.status, completed.totals.tool_errors) == ("completed", 0)


@pytest.mark.scenario("S23")
@pytest.mark.requirement("R26")
@pytest.mark.parametrize("waiting", ["a tool", "a person", "a time"])
@pytest.mark.parametrize("said", [["one"], ["one", "two", "three"]])
def test_messages_while_calls_are_open(here: World, waiting: str, said: list[str]) -> None:
    """They wait; they come after the whole block of results, in the order of their arrival, once."""
    gate = here.gate()
    waits = {
        "a tool": call("hold", gate=gate),
        "a person": call("ask", question="?"),
        "a time": call("wait", seconds=0.5),
    }
    run = here.run([calls(waits[waiting], call("note", text="b")), calls(call("note", text="c")), DONE])
    run.until("ToolReported")
    for text in said:
        run.say(text)
    here.pass_by(run.records[0].partition)
    assert users(run.messages(-1)) == ["go"]
    here.open(gate)
    if waiting == "a person":
        run.answer(0, "yes")
    assert run.over().status == "completed"
    assert len(run.results(1)) == 2
    assert [message["role"] for message in run.messages(1)][-2 - len(said) :] == ["tool"] * 2 + ["user"] * len(said)
    assert users(run.messages(1)) == ["go", *said]
    assert users(run.messages(2)) == ["go", *said]
    assert len(run.requests) == 3


@pytest.mark.scenario("S24")
@pytest.mark.requirement("R26")
def test_a_message_while_the_last_word_is_written(here: World) -> None:
    """It is not lost: the answer was not the last word."""
    gate = here.gate()
    run = here.run([{"text": "done", "until_file": str(here.folder / gate)}, {"text": "done again"}])
    here.until(lambda: run.requests, "the model is asked")
    run.say("one more thing")
    here.pass_by(run.records[0].partition)
    here.open(gate)
    completed = run.over()
    assert (completed.status, completed.result) == ("completed", "done again")
    assert [message["content"] for message in run.messages(1)[1:]] == ["go", "done", "one more thing"]


@pytest.mark.scenario("S24")
@pytest.mark.requirement("R26")
def test_a_message_after_the_end(here: World) -> None:
    """It stands in the log and changes nothing: the run is over, and whoever asks is told so."""
    run = here.run([DONE, {"text": "woken"}])
    assert run.over().status == "completed"
    run.say("too late")
    run.until("MessageReceived")
    run.nothing_follows()
    assert run.over().result == "done"
    assert run.state().mailbox == []


@pytest.mark.scenario("S24")
@pytest.mark.requirement("R40")
def test_a_message_after_the_close(here: World) -> None:
    """What was said before the close is answered, what came after it is not."""
    gate = here.gate()
    held = {"text": "second", "until_file": str(here.folder / gate)}
    run = here.run([{"text": "first"}, held, {"text": "third"}], interactive=True)
    run.until("PhaseEntered")
    run.say("before")
    here.until(lambda: len(run.requests) == 2, "the model is asked again")
    run.append(CloseRequested(command_id=new_event_id(), sender="ann"))
    run.say("after")
    here.pass_by(run.records[0].partition)
    here.open(gate)
    completed = run.over()
    assert (completed.status, completed.result) == ("completed", "second")
    assert users(run.messages(-1)) == ["go", "before"]
