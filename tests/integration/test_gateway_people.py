"""People and external tools by HTTP: each command counts once, and whoever is late is told."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runfold.events.types import MessageReceived
from tests.integration.gateway_place import Answered, Client, Place, place

pytestmark = pytest.mark.kafka
SHA = "0" * 64
STORY = "word " * 200
PAYS = {"calls": [{"name": "pay", "arguments": {"amount": 5}}]}
ASKS = {"calls": [{"name": "ask_person", "arguments": {"question": "Which colour?"}}]}
STOCK = {"calls": [{"name": "stock", "arguments": {"item": "nail"}}]}
SCRIPT: dict[str, Any] = {
    "pays": [PAYS, {"text": "settled"}],
    "asks": [ASKS, {"text": "noted"}],
    "both": [{"calls": [*ASKS["calls"], *PAYS["calls"]]}, {"text": "done"}],
    "talks": [{"text": "first"}, {"text": "second"}, {"text": "third"}, {"text": "fourth"}],
    "slow": [{"text": STORY, "fault": {"trickle_ms": 40}}, {"text": "second"}],
    "endless": [{"text": STORY * 20, "fault": {"trickle_ms": 40}}],
    "stock": [STOCK, {"text": "ordered"}],
    "twice": [STOCK, STOCK, {"text": "ordered"}],
}


@pytest.fixture(scope="module")
def here(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(kafka_bootstrap, tmp_path_factory.mktemp("people"), SCRIPT, "intake", "executor") as made:
        yield made


@pytest.fixture(scope="module")
def client(here: Place) -> Client:
    return here.gateway()


@pytest.fixture(scope="module")
def other(here: Place) -> Client:
    return here.gateway("other")


def waiting(client: Client, agent: str, status: str, **more: Any) -> tuple[str, Any]:
    """A run of this agent that has come to wait, and its view."""
    run_id = client.submit(agent, **more)
    return run_id, client.until(run_id, lambda view: view["status"] == status, status)


def shown(view: Any) -> dict[str, Any]:
    """What a client sends back of an approval that it showed."""
    (approval,) = view["open_approvals"]
    return {"approval": approval["approval"], "arguments_sha256": approval["arguments_sha256"]}


def question(client: Client, run_id: str) -> dict[str, Any]:
    """The call that asks a person, once it does."""
    view = client.until(
        run_id, lambda view: any(c["waits_for"] == "person" for c in view["open_calls"]), "the question"
    )
    (call,) = [call for call in view["open_calls"] if call["waits_for"] == "person"]
    return {"model_call": call["model_call"], "position": call["position"]}


def recorded(client: Client, run_id: str, kind: str) -> list[Any]:
    """The events of this kind that the log has of the run."""
    found = []
    with client.events(run_id) as events:
        for event in events:
            if event.event == kind:
                found.append(event.data)
            if event.event in ("heartbeat", "TaskReported"):
                return found
    return found


def calls(client: Client, run_id: str) -> list[Any]:
    entries = client.get(f"/runs/{run_id}/transcript").body["entries"]
    return [call for entry in entries for call in entry["calls"]]


def at_once(run_id: str, body: dict[str, Any], **by: Client) -> dict[str, Answered]:
    """The answers to several commands, sent together."""
    answers: dict[str, Answered] = {}

    def send(word: str) -> None:
        answers[word] = by[word].post(f"/runs/{run_id}/{word}", body)

    threads = [threading.Thread(target=send, args=(word,)) for word in by]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


# ---- approvals


@pytest.mark.requirement("R25")
def test_what_was_shown_is_what_runs(client: Client) -> None:
    """The approval is seen with its reason and arguments; a yes to exactly that starts the tool; who said so is kept."""
    run_id, view = waiting(client, "pays", "waiting_approval")
    (approval,) = view["open_approvals"]
    assert (approval["tool"], approval["reason"], approval["arguments"]) == ("pay", "it costs money", '{"amount": 5}')
    assert approval["expires_at_ms"] - approval["asked_at_ms"] == 300_000
    assert [call["waits_for"] for call in view["open_calls"]] == ["approval"]
    answer = client.post(f"/runs/{run_id}/approve", {**shown(view), "sender": "ana"})
    assert (answer.status, answer.body["run_id"]) == (200, run_id)
    assert client.ends(run_id)["result"] == "settled"
    (call,) = calls(client, run_id)
    assert (call["output"], call["approved"], call["decided_by"]) == ("paid 5", True, "ana")


@pytest.mark.requirement("R25")
def test_a_denied_call_does_not_run(client: Client) -> None:
    """The model is told why."""
    run_id, view = waiting(client, "pays", "waiting_approval")
    assert client.post(f"/runs/{run_id}/deny", {**shown(view), "reason": "too much"}).status == 200
    assert client.ends(run_id)["status"] == "completed"
    (call,) = calls(client, run_id)
    assert (call["outcome"], call["approved"], call["starts"]) == ("rejected", False, [])
    assert "too much" in call["output"]


@pytest.mark.requirement("R25")
@pytest.mark.scenario("S19")
@pytest.mark.parametrize("second", ["approve", "deny"])
def test_an_approval_is_decided_once(client: Client, other: Client, second: str) -> None:
    """The first word counts; the second, the same or the opposite, also by another gateway and after the end, is told."""
    run_id, view = waiting(client, "pays", "waiting_approval")
    assert client.post(f"/runs/{run_id}/approve", {**shown(view), "sender": "ana"}).status == 200
    late = client.post(f"/runs/{run_id}/{second}", {**shown(view), "sender": "bob"})
    assert (late.status, late.detail) == (409, "it was already approved by ana")
    client.ends(run_id)
    client.until(run_id, lambda view: view["phase"] == "done", "the report")
    assert other.post(f"/runs/{run_id}/{second}", shown(view)).detail == "it was already approved by ana"
    (call,) = calls(client, run_id)
    assert len(call["starts"]) == 1


@pytest.mark.requirement("R25")
@pytest.mark.scenario("S19")
def test_of_two_who_decide_at_once_one_counts(client: Client, other: Client) -> None:
    """Yes and no at the same time by two gateways: one is accepted, the other is told, and the tool obeys."""
    for _ in range(5):
        run_id, view = waiting(client, "pays", "waiting_approval")
        other.until(run_id, lambda view: view["open_approvals"], "the approval")
        answers = at_once(run_id, shown(view), approve=client, deny=other)
        assert sorted(answer.status for answer in answers.values()) == [200, 409]
        client.ends(run_id)
        (call,) = calls(client, run_id)
        assert (call["outcome"] == "succeeded") == (answers["approve"].status == 200)
        loser = next(answer for answer in answers.values() if answer.status == 409)
        assert loser.detail == f"it was already {'approved' if call['approved'] else 'rejected'}"


@pytest.mark.requirement("R25")
@pytest.mark.scenario("S19")
def test_a_decided_approval_stays_decided_after_a_restart(here: Place, client: Client) -> None:
    """A gateway that knows nothing but the log gives the same refusal, and the same answer to the same command."""
    run_id, view = waiting(client, "both", "waiting_approval")
    body = {**shown(view), "sender": "ana", "command_id": "yes-1"}
    first = client.post(f"/runs/{run_id}/approve", body)
    assert first.status == 200
    anew = here.gateway("restarted")
    assert anew.post(f"/runs/{run_id}/deny", shown(view)).detail == "it was already approved by ana"
    assert anew.post(f"/runs/{run_id}/approve", body).body == first.body
    assert len(recorded(client, run_id, "ApprovalDecided")) == 2
    assert client.post(f"/runs/{run_id}/answer", {**question(client, run_id), "text": "blue"}).status == 200
    assert client.ends(run_id)["status"] == "completed"
    here.end("restarted")


@pytest.mark.requirement("R25")
@pytest.mark.scenario("S20")
def test_an_approval_that_comes_too_late_starts_nothing(client: Client) -> None:
    """After its time limit: refused as expired, which is not a denial."""
    run_id, view = waiting(client, "pays", "waiting_approval", limits={"approval_ms": 300})
    client.ends(run_id)
    late = client.post(f"/runs/{run_id}/approve", shown(view))
    assert (late.status, "expired" in late.detail) == (409, True)
    (call,) = calls(client, run_id)
    assert (call["outcome"], call["starts"], call["approved"]) == ("expired", [], None)


@pytest.mark.requirement("R25")
@pytest.mark.scenario("S20")
def test_an_approval_of_something_else_is_written_nowhere(client: Client) -> None:
    """Another run's, an unknown one, other arguments, none at all: refused, and the log does not hear of it."""
    run_id, view = waiting(client, "pays", "waiting_approval")
    stranger, strange = waiting(client, "pays", "waiting_approval")
    wrong: list[tuple[dict[str, Any], int]] = [
        (shown(strange), 409), ({**shown(view), "approval": "nothing"}, 409), ({**shown(view), "arguments_sha256": SHA}, 409),
        ({"approval": shown(view)["approval"]}, 422), ({"arguments_sha256": SHA}, 422), ({}, 422),
        ({**shown(view), "arguments_sha256": "x"}, 422), ({**shown(view), "approved": False}, 422),
    ]  # fmt: skip
    for body, status in wrong:
        for word in ("approve", "deny"):
            answer = client.post(f"/runs/{run_id}/{word}", body)
            assert (answer.status, bool(answer.detail)) == (status, True), (body, answer)
    assert recorded(client, run_id, "ApprovalDecided") == []
    assert client.run(run_id)["status"] == "waiting_approval"
    for each in (run_id, stranger):
        assert client.post(f"/runs/{each}/cancel").status == 200


# ---- questions and messages


@pytest.mark.requirement("R12")
def test_a_question_is_answered_once(client: Client) -> None:
    """The answer is the call's result; a second one is told who was first; a call that asks nobody takes none."""
    run_id, _ = waiting(client, "both", "waiting_approval")
    body = {**question(client, run_id), "text": "blue\x00", "sender": "ana"}
    assert client.post(f"/runs/{run_id}/answer", body).status == 200
    assert client.post(f"/runs/{run_id}/answer", {**body, "text": "red"}).detail == "it was already answered by ana"
    for wrong in ({"model_call": "nothing"}, {"position": 1}, {"position": 7}):
        assert "asks no person" in client.post(f"/runs/{run_id}/answer", {**body, **wrong}).detail
    assert client.post(f"/runs/{run_id}/answer", {**body, "text": "x" * 300_000}).status == 413
    assert client.post(f"/runs/{run_id}/deny", shown(client.run(run_id))).status == 200
    client.ends(run_id)
    assert len(recorded(client, run_id, "QuestionAnswered")) == 2
    asked, paid = calls(client, run_id)
    assert (asked["output"], asked["closed_by"], paid["outcome"]) == (
        "blue\N{REPLACEMENT CHARACTER}", "ana", "rejected",
    )  # fmt: skip


@pytest.mark.requirement("R26")
@pytest.mark.requirement("R40")
@pytest.mark.scenario("S24")
def test_messages_are_answered_until_the_run_is_closed(client: Client) -> None:
    """In order, once; after the close and after the end they are refused in words, and nothing is lost silently."""
    run_id, _ = waiting(client, "talks", "waiting_message", interactive=True)
    for text in ("more", "and more"):
        turn = client.run(run_id)["turn"]
        assert client.post(f"/runs/{run_id}/message", {"text": text, "sender": "ana"}).status == 200
        client.until(
            run_id, lambda view, turn=turn: view["status"] == "waiting_message" and view["turn"] > turn, "the reply"
        )
    closed = client.post(f"/runs/{run_id}/close", {"sender": "ana"})
    assert closed.status == 200
    assert client.post(f"/runs/{run_id}/message", {"text": "wait"}).status == 409
    completion = client.ends(run_id)
    assert (completion["status"], completion["kind"], completion["result"]) == ("completed", "closed", "third")
    assert client.post(f"/runs/{run_id}/message", {"text": "hello?"}).detail == "the run has ended as completed"
    assert client.post(f"/runs/{run_id}/close").detail == "the run has ended as completed"
    entries = client.get(f"/runs/{run_id}/transcript").body["entries"]
    said = [(entry["kind"], entry["text"], entry["sender"]) for entry in entries]
    assert said == [
        ("message", "go", "task"), ("reply", "first", ""), ("message", "more", "ana"), ("reply", "second", ""),
        ("message", "and more", "ana"), ("reply", "third", ""),
    ]  # fmt: skip


@pytest.mark.requirement("R26")
@pytest.mark.scenario("S24")
def test_a_message_during_the_last_reply_gets_an_answer(client: Client) -> None:
    """The run had nothing more to do, and takes another turn."""
    run_id = client.submit("slow")
    client.until(run_id, lambda view: view["phase"] == "calling_model", "the model call")
    assert client.post(f"/runs/{run_id}/message", {"text": "one more thing", "command_id": "m1"}).status == 200
    assert client.run(run_id)["mailbox"] == [{"command_id": "m1", "sender": ""}]
    assert client.ends(run_id)["result"] == "second"


def test_a_large_message_goes_by_the_blob_store(client: Client) -> None:
    """Text and parts alike; neither nothing nor both."""
    run_id, _ = waiting(client, "talks", "waiting_message", interactive=True)
    for body in ({"text": "x" * 400_000}, {"parts": [{"type": "text", "text": "x" * 400_000}]}):
        turn = client.run(run_id)["turn"]
        assert client.post(f"/runs/{run_id}/message", body).status == 200
        client.until(run_id, lambda view, turn=turn: view["turn"] > turn, "the reply")
    for wrong in ({}, {"text": " "}, {"text": "a", "parts": [{"type": "text"}]}, {"parts": [{"text": "a"}]}):
        assert client.post(f"/runs/{run_id}/message", wrong).status == 422
    assert client.post(f"/runs/{run_id}/close").status == 200
    client.ends(run_id)
    entries = client.get(f"/runs/{run_id}/transcript").body["entries"]
    assert [entry["parts"] for entry in entries if entry["blob"]] == [None, []]  # a text, and parts


# ---- one command, one effect


@pytest.mark.requirement("R26")
def test_the_same_command_twice_has_one_effect_and_one_answer(client: Client, other: Client) -> None:
    """Whichever gateway is asked, also after the end; another body under the same id is refused."""
    run_id, _ = waiting(client, "talks", "waiting_message", interactive=True)
    body = {"text": "more", "command_id": "m1"}
    answers = [each.post(f"/runs/{run_id}/message", body) for each in (client, client, other)]
    client.until(run_id, lambda view: view["status"] == "waiting_message" and view["turn"] == 2, "the reply")
    assert [answer.status for answer in answers] == [200] * 3
    assert answers[0].body == answers[1].body == answers[2].body
    assert "another body" in client.post(f"/runs/{run_id}/message", {**body, "text": "less"}).detail
    assert "another body" in client.post(f"/runs/{run_id}/close", {"command_id": "m1"}).detail
    assert client.post(f"/runs/{run_id}/close", {"command_id": "c1"}).status == 200
    refused = client.post(f"/runs/{run_id}/close", {"command_id": "c2"})
    client.ends(run_id)
    client.until(run_id, lambda view: view["phase"] == "done", "the report")
    assert other.post(f"/runs/{run_id}/message", body).body == answers[0].body
    assert other.post(f"/runs/{run_id}/close", {"command_id": "c2"}).body == refused.body
    assert len(recorded(client, run_id, "MessageReceived")) == 1


@pytest.mark.requirement("R26")
def test_a_gateway_killed_after_its_append_answers_by_another(here: Place, client: Client) -> None:
    """What it left in the log is what the same command gets as its answer, and it counted once."""
    run_id, _ = waiting(client, "talks", "waiting_message", interactive=True)
    here.append(run_id, MessageReceived(command_id="left", text="more", sender="ana"), "an event id")
    client.until(run_id, lambda view: view["status"] == "waiting_message" and view["turn"] == 2, "the reply")
    answer = client.post(f"/runs/{run_id}/message", {"command_id": "left", "text": "more", "sender": "ana"})
    assert (answer.status, answer.body["command_id"]) == (200, "left")
    assert len(recorded(client, run_id, "MessageReceived")) == 1
    for number in range(2):
        doomed = here.gateway("doomed")
        body = {"command_id": f"killed-{number}", "text": "and more"}
        thread = threading.Thread(target=_ask_in_vain, args=(doomed, run_id, body))
        thread.start()
        here.end("doomed", signal.SIGKILL)
        thread.join()
        assert client.post(f"/runs/{run_id}/message", body).status == 200
        found = [each["data"]["command_id"] for each in recorded(client, run_id, "MessageReceived")]
        assert found.count(f"killed-{number}") in (1, 2)  # two records at most: one effect
    client.post(f"/runs/{run_id}/close")
    client.ends(run_id)
    entries = client.get(f"/runs/{run_id}/transcript").body["entries"]
    assert [entry["text"] for entry in entries if entry["kind"] == "message"].count("and more") == 2


def _ask_in_vain(client: Client, run_id: str, body: dict[str, Any]) -> None:
    try:
        client.post(f"/runs/{run_id}/message", body)
    except OSError:
        return


@pytest.mark.parametrize("word", ["message", "answer", "approve", "deny", "cancel", "pause", "resume", "close"])
def test_an_unknown_run_takes_no_command(client: Client, word: str) -> None:
    """404, also for a well-formed one; a malformed one is 422 and a misspelt field is named."""
    bodies: dict[str, dict[str, Any]] = {
        "message": {"text": "x"}, "answer": {"model_call": "m", "position": 0, "text": "x"},
        "approve": {"approval": "a", "arguments_sha256": SHA}, "deny": {"approval": "a", "arguments_sha256": SHA},
    }  # fmt: skip
    body = bodies.get(word, {})
    assert client.post(f"/runs/nobody/{word}", body).status == 404
    assert "sendr" in client.post(f"/runs/nobody/{word}", {**body, "sendr": "x"}).detail
    for wrong in ({"command_id": ""}, {"command_id": "x" * 201}, {"command_id": 7}, {"sender": "a\nb"}):
        assert client.post(f"/runs/nobody/{word}", {**body, **wrong}).status == 422
    assert client.get("/runs/nobody").status == 404


# ---- cancel, pause, resume


@pytest.mark.requirement("R27")
def test_cancel_is_heard_during_a_model_call(here: Place, client: Client) -> None:
    """The stream to the model is closed, the run ends as cancelled by whom and why; a second cancel is told."""
    gone = here.model.app.disconnects
    run_id = client.submit("endless")
    client.until(run_id, lambda view: view["phase"] == "calling_model", "the model call")
    assert client.post(f"/runs/{run_id}/cancel", {"reason": "enough", "sender": "ana"}).status == 200
    completion = client.ends(run_id)
    assert (completion["status"], completion["reason"]) == ("cancelled", "enough")
    assert client.post(f"/runs/{run_id}/cancel").detail == "the run has ended as cancelled"
    assert here.model.app.disconnected.wait(30)
    assert here.model.app.disconnects > gone


@pytest.mark.requirement("R27")
def test_a_paused_run_waits_until_it_is_resumed(client: Client) -> None:
    """Answers are taken meanwhile, and nothing new starts; what is not paused cannot be resumed."""
    run_id, _ = waiting(client, "asks", "waiting_answer")
    assert client.post(f"/runs/{run_id}/resume").detail == "the run is not paused"
    assert client.post(f"/runs/{run_id}/pause").body["status"] == "paused"
    assert client.post(f"/runs/{run_id}/pause").detail == "the run is paused already"
    assert client.post(f"/runs/{run_id}/answer", {**question(client, run_id), "text": "blue"}).status == 200
    assert client.get(f"/runs/{run_id}/result?wait=0.5").body["status"] == "paused"
    assert client.run(run_id)["turn"] == 1
    assert client.post(f"/runs/{run_id}/resume").status == 200
    assert client.ends(run_id)["result"] == "noted"


# ---- external tools


def dispatched(client: Client, run_id: str, but: str = "") -> Any:
    """The run's open call, once it is dispatched."""
    view = client.until(
        run_id, lambda view: [c for c in view["open_calls"] if c["dispatch"] not in (None, but)], "the dispatch"
    )
    (call,) = view["open_calls"]
    return call


def token(client: Client, run_id: str, dispatch: str) -> str:
    answer = client.get(f"/runs/{run_id}/calls/{dispatch}/token")
    assert answer.status == 200, answer
    return str(answer.body["token"])


@pytest.mark.requirement("R13")
def test_an_external_tool_reports_with_the_token_of_its_dispatch(client: Client, other: Client) -> None:
    """Neither the service's token nor another dispatch's will do; a report counts once, and a late one is told."""
    run_id, _ = waiting(client, "twice", "running")
    call = dispatched(client, run_id)
    assert (call["waits_for"], call["tool"], call["tool_class"]) == ("external", "stock", "external")
    first = token(client, run_id, call["dispatch"])
    path = f"/runs/{run_id}/calls/{call['dispatch']}/report"
    body = {"outcome": "succeeded", "output": "\x00" + "seven " * 60_000}
    for wrong in (client.token, first[:-1], first + "x", "", "v1."):
        assert client.post(path, body, headers={"authorization": f"Bearer {wrong}"}).status == 401
    stranger, _ = waiting(client, "stock", "running")
    strange = dispatched(client, stranger)["dispatch"]
    foreign = token(client, stranger, strange)
    assert client.post(path, body, headers={"authorization": f"Bearer {foreign}"}).status == 401
    signed = {"authorization": f"Bearer {first}"}
    assert client.post(path, {**body, "outcome": "fine"}, headers=signed).status == 422
    answers = [each.post(path, body, headers=signed) for each in (client, client, other)]
    assert [answer.status for answer in answers] == [200] * 3, answers
    assert answers[0].body == answers[2].body
    assert "another body" in client.post(path, {**body, "outcome": "failed"}, headers=signed).detail
    assert "closed" in client.get(f"/runs/{run_id}/calls/{call['dispatch']}/token").detail
    again = dispatched(client, run_id, call["dispatch"])
    report = {"outcome": "failed", "output": "none left"}
    assert client.post(f"/runs/{run_id}/calls/{again['dispatch']}/report", report, headers=signed).status == 401
    assert client.post(f"/runs/{run_id}/cancel").status == 200
    client.ends(run_id)
    late = {"authorization": f"Bearer {token_of_closed(run_id, again['dispatch'])}"}
    told = client.post(f"/runs/{run_id}/calls/{again['dispatch']}/report", report, headers=late)
    assert (told.status, "late" in told.detail) == (409, True)
    reported, closed = calls(client, run_id)
    assert reported["output"].startswith("\N{REPLACEMENT CHARACTER}seven")
    assert "left out" in reported["output"]
    assert reported["output_bytes"] == 360_003
    assert (closed["outcome"], [each["output"] for each in closed["late_reports"]]) == ("interrupted", ["none left"])
    assert client.post(f"/runs/{stranger}/cancel").status == 200


def token_of_closed(run_id: str, dispatch: str) -> str:
    """As its service would have it from before the end."""
    from runfold.gateway.tokens import dispatch_token
    from tests.integration.gateway_place import SECRET

    return dispatch_token(SECRET, run_id, dispatch)


def test_a_dispatch_of_another_kind_has_no_token(client: Client) -> None:
    """Only external tools report over HTTP."""
    run_id, view = waiting(client, "asks", "waiting_answer")
    dispatch = view["open_calls"][0]["dispatch"]
    for each in (dispatch, "nothing"):
        assert client.get(f"/runs/{run_id}/calls/{each}/token").status == 404
    assert client.get(f"/runs/nobody/calls/{dispatch}/token").status == 404
    assert client.post(f"/runs/{run_id}/cancel").status == 200


def test_without_a_secret_no_tokens_are_signed(here: Place) -> None:
    """And none is taken: an empty secret would sign for everybody."""
    plain = here.gateway("plain", RUNFOLD_DISPATCH_SECRET="")
    assert "RUNFOLD_DISPATCH_SECRET" in plain.get("/runs/x/calls/d/token").detail
    assert plain.post("/runs/x/calls/d/report", {}).status == 503
    here.end("plain")
