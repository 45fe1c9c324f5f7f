"""What models write where a call should stand, and what becomes of it."""

import json
from typing import Any

import pytest

from runfold.core.transcript import call_id, calls_of
from tests.scenarios.replies import DONE, call, calls, function, raw
from tests.scenarios.world import Run, World

pytestmark = pytest.mark.kafka


def wire_ids(run: Run) -> list[str]:
    """Of all calls in the last request, in order."""
    return [each["id"] for message in run.messages(-1) for each in message.get("tool_calls", ())]


@pytest.mark.scenario("S01")
@pytest.mark.requirement("R17")
def test_an_invented_tool_beside_a_valid_call(here: World) -> None:
    """The valid one runs; the other's result names what there is; both go back in call order; one tool error."""
    run = here.run([calls(call("invented", x=1), call("note", text="a")), DONE])
    completed = run.over()
    unknown, known = run.results(1)
    assert "'invented'" in unknown
    assert all(name in unknown for name in ("note", "hold", "ask", "delegate"))
    assert known == "noted a"
    assert (completed.status, completed.result) == ("completed", "done")
    assert (completed.totals.tool_errors, completed.totals.tool_calls) == (1, 1)
    assert run.done() == ["note"]


@pytest.mark.scenario("S02")
@pytest.mark.requirement("R4")
def test_ids_that_repeat(here: World) -> None:
    """In one reply, in a later turn, in another run: each call runs once, and has its own result under its own id."""

    def replies(who: str) -> list[Any]:
        first = calls(call("note", "toolu_01", text=f"{who} 1"), call("note", "toolu_01", text=f"{who} 2"))
        return [first, calls(call("note", "toolu_01", text=f"{who} 3")), DONE]

    runs = {who: here.run(replies(who)) for who in ("ann", "bob")}
    for who, run in runs.items():
        assert run.over().status == "completed"
        assert run.results(1) == [f"noted {who} 1", f"noted {who} 2"]
        assert run.results(2) == [f"noted {who} 3"]
        assert len(set(wire_ids(run))) == 3
        assert run.done() == ["note"] * 3
        assert {item.provider_id for each in run.events("ModelReplied") for item in calls_of(each.items)} == {
            "toolu_01"
        }


@pytest.mark.scenario("S03")
@pytest.mark.requirement("R4")
@pytest.mark.parametrize("texts", [("same", "same"), ("one", "other")])
def test_the_same_tool_twice_in_one_reply(here: World, texts: tuple[str, str]) -> None:
    """Both run, whether their arguments differ or not: a call is known by its place."""
    run = here.run([calls(*(call("note", text=text) for text in texts)), DONE])
    assert run.over().status == "completed"
    assert run.results(1) == [f"noted {text}" for text in texts]
    assert len({effect.key for effect in run.effects}) == 2


@pytest.mark.scenario("S04")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("id", [{}, {"id": None}, {"id": ""}], ids=["missing", "null", "empty"])
def test_calls_without_an_id(here: World, id: dict[str, Any], stream: bool) -> None:
    """They get one of turn and place. `over` folds the log anew, and finds the same in every request."""
    made = [function("note", json.dumps({"text": text}), **id) for text in ("a", "b")]
    run = here.run([raw(*made, stream=stream), DONE])
    assert run.over().status == "completed"
    assert run.results(1) == ["noted a", "noted b"]
    assert wire_ids(run) == [call_id(1, 0), call_id(1, 1)]


@pytest.mark.scenario("S06")
@pytest.mark.requirement("R17")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("idle", "", "(no output)"),
        ("idle", None, "(no output)"),
        ("note", {"text": "object"}, "noted object"),
        ("note", json.dumps(json.dumps({"text": "twice"})), "noted twice"),
        ("note", '["a list"]', "must be a JSON object, not list"),
        ("note", ["a list"], "must be a JSON object, not list"),
        ("note", "3", "must be a JSON object, not int"),
    ],
)
def test_arguments_of_every_shape(here: World, tool: str, arguments: Any, result: str, stream: bool) -> None:
    """Nothing is an empty object; an object is taken, also one in a text in a text; all else is an error result."""
    run = here.run([raw(function(tool, arguments, id="c"), stream=stream), DONE])
    completed = run.over()
    assert completed.status == "completed"
    assert result in run.results(1)[0]
    is_refused = "must be" in result
    assert run.done() == ([] if is_refused else [tool])
    assert completed.totals.tool_errors == is_refused


@pytest.mark.scenario("S07")
@pytest.mark.requirement("R17")
@pytest.mark.parametrize("text", ['{"text": "a', "{text: 'a'}", '{"text": NaN}', "[" * 5_000])
def test_arguments_that_are_no_json(here: World, text: str) -> None:
    """Not run, but answered; the server, which reads histories strictly, accepts the next request; the log keeps them raw."""
    run = here.run([calls({"name": "note", "arguments": text}, call("note", text="b")), DONE])
    completed = run.over()
    assert (completed.status, completed.totals.tool_errors) == ("completed", 1)
    broken, good = run.results(1)
    assert "not valid JSON" in broken
    assert good == "noted b"
    assert run.done() == ["note"]
    sent = next(message for message in run.messages(1) if message.get("tool_calls"))
    assert [json.loads(each["function"]["arguments"]) for each in sent["tool_calls"]] == [{}, {"text": "b"}]
    assert calls_of(run.events("ModelReplied")[0].items)[0].arguments == text


@pytest.mark.scenario("S33")
@pytest.mark.requirement("R5")
@pytest.mark.requirement("R6")
def test_a_slow_first_call(here: World) -> None:
    """Outcomes are recorded as they come; the model sees them in call order, each under its own id, when all are there."""
    gate = here.gate()
    run = here.run([calls(call("hold", gate=gate), call("note", text="b"), call("note", text="c")), DONE])
    run.until("ToolReported", 2)
    assert len(run.requests) == 1
    here.open(gate)
    assert run.over().status == "completed"
    assert [each.position for each in run.events("ToolReported")][-1] == 0
    assert run.results(1) == [f"held {gate}", "noted b", "noted c"]


@pytest.mark.scenario("S35")
@pytest.mark.requirement("R8")
@pytest.mark.parametrize("final", [None, "final_answer"])
def test_an_answer_beside_calls(here: World, final: str | None) -> None:
    """The rule: a reply with calls is no end. Its calls are run or answered first; the reply without calls is the end."""
    said = [call("note", text="a")] + ([call(final, answer="42")] if final else [])
    run = here.run([calls(*said, text="The answer is 42."), {"text": "42, and all is noted"}])
    completed = run.over()
    assert (completed.status, completed.result) == ("completed", "42, and all is noted")
    assert run.results(1)[0] == "noted a"
    assert len(run.results(1)) == len(said)
    assert run.done() == ["note"]
    assert run.messages(1)[2]["content"] == "The answer is 42."
