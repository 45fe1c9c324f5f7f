"""The gateway by HTTP alone: submit, look, wait, follow; and what it refuses."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runfold.core.live_text import LiveText
from runfold.events.types import ModelTextDelta
from tests.integration.gateway_place import PARTITIONS, Client, Place, Sse, place

pytestmark = pytest.mark.kafka
STORY = "".join(f"{number} sheep jumped over the fence, and one looked back. " for number in range(1, 25))
SCRIPT: dict[str, Any] = {
    "short": [{"calls": [{"name": "echo", "arguments": {"text": "two\x00words"}}]}, {"text": "all is well"}],
    "slow": [{"text": STORY, "fault": {"trickle_ms": 40}}],
    "long": [{"text": "x" * 100_000}],
    "asks": [{"calls": [{"name": "ask_person", "arguments": {"question": "Which colour?"}}]}, {"text": "noted"}],
    "delegates": [
        {"calls": [{"name": "delegate", "arguments": {"task": "go", "agent": "short"}}]},
        {"text": "it was done"},
    ],
}


@pytest.fixture(scope="module")
def here(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(kafka_bootstrap, tmp_path_factory.mktemp("gateway"), SCRIPT, "intake", "executor") as made:
        yield made


@pytest.fixture(scope="module")
def client(here: Place) -> Client:
    return here.gateway()


@pytest.mark.requirement("R32")
def test_a_task_goes_in_and_its_result_comes_out(client: Client) -> None:
    """One request that waits; status, result and transcript say the same, also of a run that has ended."""
    body = {"task_id": "a/b ü?", "agent": "short", "input": "go", "labels": {"team": "red"}}
    answer = client.post("/tasks?wait=60", body)
    assert answer.status == 201, answer
    completion = answer.body["completion"]
    assert (completion["status"], completion["result"], completion["labels"]) == (
        "completed",
        "all is well",
        {"team": "red"},
    )
    view = client.until("a/b ü?", lambda view: view["phase"] == "done", "the report")
    assert (view["status"], view["turn"], view["totals"]["tool_calls"], view["labels"]) == (
        "completed", 2, 1, {"team": "red"},
    )  # fmt: skip
    assert (view["agent"], view["model"], view["open_calls"], view["finished_at_ms"]) == (
        "short", "short", [], completion["finished_at_ms"],
    )  # fmt: skip
    assert 0 <= view["as_of"]["partition"] < PARTITIONS
    assert client.ends("a/b ü?") == completion


@pytest.mark.requirement("R33")
def test_the_same_task_twice_is_one(client: Client) -> None:
    """The same id and body: the same answer. Another body: refused, before and after the run's end."""
    body = {"task_id": "twice", "agent": "short", "input": "go"}
    first = client.post("/tasks", body)
    again = client.post("/tasks", body)
    other = client.post("/tasks", {**body, "input": "go on"})
    assert (first.status, again.status, other.status) == (201, 200, 409)
    assert first.body == again.body
    assert "another body" in other.detail
    completion = client.ends("twice")
    client.until("twice", lambda view: view["phase"] == "done", "the report")
    assert client.post("/tasks?wait=5", body).body == {**first.body, "completion": completion}
    assert client.post("/tasks", {**body, "interactive": True}).status == 409
    transcript = client.get("/runs/twice/transcript").body
    assert [entry["kind"] for entry in transcript["entries"]] == ["message", "reply", "reply"]


@pytest.mark.requirement("R33")
def test_two_who_submit_at_once_start_one_run(here: Place, client: Client) -> None:
    """Two gateways, two bodies, one id: one body counts, and the other sender is told."""
    other = here.gateway("other")
    for number in range(3):
        task_id = f"race-{number}"
        answers: list[int] = []

        def send(client: Client, text: str, task_id: str = task_id, answers: list[int] = answers) -> None:
            answers.append(client.post("/tasks", {"task_id": task_id, "agent": "short", "input": text}).status)

        threads = [threading.Thread(target=send, args=pair) for pair in ((client, "one"), (other, "two"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [201, 409]
        assert client.ends(task_id)["status"] == "completed"
    here.end("other")


def test_a_gateway_that_is_behind_reads_on_before_it_says_no(here: Place, client: Client) -> None:
    """What one gateway has answered for is not unknown to another that was stopped meanwhile."""
    other = here.gateway("behind")
    process = here.processes["behind"]
    for _ in range(5):
        process.send_signal(signal.SIGSTOP)
        run_id = client.submit("short")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(other.get, f"/runs/{run_id}")
            process.send_signal(signal.SIGCONT)
            assert asked.result().status == 200
    here.end("behind")


def test_a_result_is_waited_for_no_longer_than_asked(client: Client) -> None:
    """A run that goes on answers 202 with its status, an unknown one 404, both in time."""
    run_id = client.submit("asks")
    client.until(run_id, lambda view: view["status"] == "waiting_answer", "the question")
    began = time.monotonic()
    answer = client.get(f"/runs/{run_id}/result?wait=0.5")
    assert (answer.status, answer.body) == (202, {"run_id": run_id, "status": "waiting_answer"})
    assert client.get("/runs/nobody/result?wait=0.5").status == 404
    assert 0.9 < time.monotonic() - began < 10
    for wrong in ("-1", "1e9", "nan", "soon"):
        assert "seconds" in client.get(f"/runs/{run_id}/result?wait={wrong}").detail
    assert client.post(f"/runs/{run_id}/cancel").status == 200


@pytest.mark.requirement("R7")
@pytest.mark.requirement("R39")
def test_the_transcript_has_call_and_result_in_one_row(client: Client) -> None:
    """With who closed it and when, and the phases with their times; text is safe for every reader."""
    run_id = client.submit("short")
    client.ends(run_id)
    found = client.get(f"/runs/{run_id}/transcript").body
    message, called, answered = found["entries"]
    assert (message["kind"], message["text"], message["sender"]) == ("message", "go", "task")
    (call,) = called["calls"]
    assert (call["tool"], call["outcome"], call["output"], call["closed_by"]) == (
        "echo", "succeeded", "two\N{REPLACEMENT CHARACTER}words", "tool",
    )  # fmt: skip
    assert call["starts"][0]["at_ms"] <= call["closed_at_ms"]
    assert (answered["text"], answered["finish_reason"]) == ("all is well", "stop")
    phases = [phase["phase"] for phase in found["phases"]]
    assert phases[:4] == ["queued", "loading_context", "calling_model", "dispatching_tools"]
    assert [each["at_ms"] for each in found["phases"]] == sorted(each["at_ms"] for each in found["phases"])


@pytest.mark.requirement("R28")
def test_a_run_shows_its_children_and_its_parent(client: Client) -> None:
    """Who waits for whom can be read from both sides."""
    run_id = client.submit("delegates")
    assert client.ends(run_id)["result"] == "it was done"
    (child,) = client.run(run_id)["children"]
    assert child["status"] == "completed"
    assert client.run(child["run_id"])["parent"] == run_id
    (row,) = client.get(f"/runs/{run_id}/transcript").body["entries"][1]["calls"]
    assert (row["child"], row["closed_by"], row["output"]) == (child["run_id"], child["run_id"], "all is well")


def followed(client: Client, run_id: str, **headers: str) -> list[Sse]:
    with client.events(run_id, **headers) as events:
        return [event for event in events if event.event not in ("heartbeat", "text")]


@pytest.mark.requirement("R29")
def test_events_come_live_with_the_text_while_it_is_written(client: Client) -> None:
    """Somebody who joins in the middle sees the whole text grow; the reply replaces it; the end ends the stream."""
    run_id = client.submit("slow")
    client.until(run_id, lambda view: view["phase"] == "calling_model", "the model call")
    live, screens, seen = LiveText(), [], []
    with client.events(run_id) as events:
        for event in events:
            seen.append(event)
            if event.event == "ModelCallStarted":
                live.model_call = event.data["event_id"]
            if event.event == "text":
                live.take_delta(ModelTextDelta(**event.data))
                screens.append(live.text)
    assert STORY.startswith(screens[0])
    assert screens[-1] == STORY
    assert len(set(screens)) > 5
    names = [event.event for event in seen]
    assert names.index("text") < names.index("ModelReplied")
    assert names[-1] == "TaskReported"
    assert "heartbeat" in names
    assert [event.id for event in seen if event.event == "text"] == [None] * names.count("text")


@pytest.mark.requirement("R36")
def test_a_stream_resumes_in_the_middle(client: Client) -> None:
    """From every offset on, exactly what comes after it, once; after the last there is nothing, and that is said."""
    run_id = client.submit("short")
    client.ends(run_id)
    whole = followed(client, run_id)
    ids = [event.id or 0 for event in whole]
    assert ids == sorted(set(ids))
    assert [event.event for event in whole[:2]] == ["RunRequested", "ContextLoaded"]
    for place_in, event in enumerate(whole[:-1]):
        assert followed(client, run_id, Last_Event_ID=str(event.id)) == whole[place_in + 1 :]
    assert client.get(f"/runs/{run_id}/events", headers={"last-event-id": str(ids[-1])}).status == 204
    assert client.get(f"/runs/{run_id}/events", headers={"last-event-id": "x"}).status == 422
    assert client.get("/runs/nobody/events").status == 404


def test_a_stream_that_is_cut_goes_on_where_it_was(client: Client) -> None:
    """Cut while the run waits: the rest comes to whoever asks with the last id, and nothing twice."""
    run_id = client.submit("asks")
    before: list[Sse] = []
    with client.events(run_id) as events:
        for event in events:
            before.append(event)
            if event.event == "PhaseEntered":
                break
    ids = [event.id for event in before if event.id is not None]
    with client.events(run_id, Last_Event_ID=str(ids[-1])) as events:
        assert next(events).event == "heartbeat"
        question = client.run(run_id)["open_calls"][0]
        answer = {"model_call": question["model_call"], "position": question["position"], "text": "blue"}
        assert client.post(f"/runs/{run_id}/answer", answer).status == 200
        after = [event for event in events if event.id is not None]
    assert [event.id for event in (*before, *after) if event.id is not None] == [
        event.id for event in followed(client, run_id)
    ]
    assert after[0].event == "QuestionAnswered"
    assert len({event.id for event in after}) == len(after)


def test_void_decisions_do_not_appear(here: Place, client: Client) -> None:
    """A decision that follows another than the last accepted one is nobody's business."""
    run_id = client.submit("asks")
    client.until(run_id, lambda view: view["status"] == "waiting_answer", "the question")
    here.append_decision(run_id, "stranger", follows="something else")
    with client.events(run_id) as events:
        names = []
        for event in events:
            names.append(event.data["event_id"] if event.data and "event_id" in event.data else "")
            if event.event == "heartbeat":
                break
    assert "stranger" not in names
    assert client.post(f"/runs/{run_id}/cancel").status == 200


@pytest.mark.requirement("R36")
def test_a_gateway_that_starts_anew_knows_all_runs(here: Place, client: Client) -> None:
    """It reads the log; ended runs, their results and transcripts are as before, long results whole."""
    ids = [client.submit(agent) for agent in ("short", "long")]
    for run_id in ids:
        client.ends(run_id)
        client.until(run_id, lambda view: view["phase"] == "done", "the report")
    other = here.gateway("anew")
    for run_id in ids:
        for path in ("result", "transcript", ""):
            old, new = (each.get(f"/runs/{run_id}/{path}".rstrip("/")).body for each in (client, other))
            old.pop("as_of", None), new.pop("as_of", None)
            assert new == old
    assert len(other.ends(ids[1])["result"]) == 100_000
    assert here.end("anew") == 0


def test_a_gateway_that_stops_lets_its_streams_go(here: Place, client: Client) -> None:
    """At once, in good order; the client goes on by another."""
    leaving = here.gateway("leaving", RUNFOLD_GATEWAY_HEARTBEAT_S="60")
    run_id = client.submit("asks")
    leaving.until(run_id, lambda view: view["status"] == "waiting_answer", "the question")
    with leaving.events(run_id) as events:
        ids = [next(events).id for _ in range(3)]
        began = time.monotonic()
        assert here.end("leaving") == 0
        assert time.monotonic() - began < 10
        ids += [event.id for event in events if event.id is not None]
    assert client.post(f"/runs/{run_id}/cancel").status == 200
    assert ids + [event.id for event in followed(client, run_id, Last_Event_ID=str(ids[-1]))] == [
        event.id for event in followed(client, run_id)
    ]


BAD_BODIES = [
    (b"", 422, "name an agent"), (b"{", 400, "not valid JSON"), (b"[]", 422, "object"), (b'{"input": NaN}', 400, "NaN"),
    (b"\xff\xfe", 400, "JSON"), (b"[" * 100_000, 400, "JSON"), (b'{"a":' * 50_000, 400, "JSON"),
    (b'{"agent": "short", "input": 1}', 422, "input"), (b'{"agent": "short", "inptu": "x"}', 422, "inptu"),
    (b'{"agent": "short", "input": " "}', 422, "empty"), (b'{"agent": "short"}', 422, "empty"),
    (b'{"agent": "short", "input": "x", "limits": {"speed": 1}}', 422, "speed"),
    (b'{"agent": "short", "input": "x", "limits": {"tokens": 99999999999999999999}}', 422, "limits"),
    (b'{"agent": "short", "input": "x", "task_id": "a\\u0007"}', 422, "printable"),
    (b'{"agent": "short", "input": "x", "task_id": ""}', 422, "task_id"),
    (b'{"agent": "short", "input": "x", "priority": ' + b"1" * 5_000 + b"}", 400, "JSON"),
    (b'{"agent": "short", "input_parts": [{"text": "x"}]}', 422, "type"),
    (b'{"agent": "short", "definition": {"model": "m"}, "input": "x"}', 422, "exactly one"),
    (b'{"agent": "short", "input": "' + b"x" * (5 * 1024 * 1024) + b'"}', 413, "limit"),
    (b'{"agent": "short", "input": "' + b"x" * (9 * 1024 * 1024) + b'"}', 413, "at most"),
]  # fmt: skip


@pytest.mark.requirement("R34")
@pytest.mark.parametrize(("body", "status", "word"), BAD_BODIES, ids=lambda value: str(value)[:40])
def test_a_bad_task_is_refused_with_what_to_do(client: Client, body: bytes, status: int, word: str) -> None:
    """At the door, as a problem in words; the gateway lives on."""
    answer = client.post("/tasks", body)
    assert (answer.status, word in answer.detail) == (status, True), answer
    assert client.get("/healthz").status == 200


def test_large_and_poisoned_texts_go_through(client: Client) -> None:
    """A large input goes by the blob store; NUL and half a surrogate pair become readable."""
    run_id = client.submit("short", input="x" * 1_000_000)
    assert client.ends(run_id)["status"] == "completed"
    assert client.get(f"/runs/{run_id}/transcript").body["entries"][0]["blob"]
    raw = json.dumps({"task_id": "poison", "agent": "short", "input": "a\x00b\ud800c"}).encode()
    assert client.post("/tasks?wait=60", raw).status == 201
    entry = client.get("/runs/poison/transcript").body["entries"][0]
    assert entry["text"] == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


def test_only_who_has_the_token_is_served(client: Client) -> None:
    """No token, a wrong one, another scheme: 401 on every route that has something to tell; health is for all."""
    for path in ("/runs/x", "/runs/x/events", "/runs/x/result", "/runs/x/transcript", "/runs/x/calls/d/token"):
        for given in (None, "Bearer wrong", "Basic dGhlIHRva2Vu", "Bearer"):
            answer = client.get(path, headers={"authorization": given})
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    for path in ("/tasks", "/runs/x/message", "/runs/x/cancel", "/runs/x/calls/d/report"):
        assert client.post(path, headers={"authorization": "Bearer wrong"}).status == 401
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert client.get(path, headers={"authorization": None}).status == 200


def test_what_is_not_a_route_is_a_problem_too(client: Client) -> None:
    """Unknown paths, wrong methods, other media types."""
    assert "openapi" in client.get("/nothing").detail
    assert client.get("/runs/x/").status == 404
    assert client.ask("DELETE", "/runs/x").status == 405
    assert client.get("/tasks").status == 405
    assert client.post("/tasks", {}, headers={"content-type": "text/plain"}).status == 415


def test_without_a_token_it_serves_this_machine_only(here: Place) -> None:
    """It does not start on another address; and no page of another site can speak to it by a name of its own."""
    process = here.start("gateway", "open", RUNFOLD_GATEWAY_TOKEN="", RUNFOLD_GATEWAY_HOST="0.0.0.0")
    assert process.wait(60) == 1
    assert "set RUNFOLD_GATEWAY_TOKEN" in here.said("open")
    local = here.gateway("local", RUNFOLD_GATEWAY_TOKEN="")
    assert local.get("/runs/x", headers={"authorization": None}).status == 404
    assert local.get("/runs/x", headers={"authorization": None, "host": "evil.example"}).status == 401
    assert here.end("local") == 0


def test_a_record_that_cannot_be_read_is_passed_visibly(here: Place, client: Client) -> None:
    """Garbage in the log is counted and told; everything else goes on."""
    before = client.get("/healthz").body["records_skipped"]
    here.producer.produce(here.names.events, b"garbage", "somebody", 0, headers={"ce_type": b"what"})
    assert here.producer.flush(30) == 0
    run_id = client.submit("short")
    assert client.ends(run_id)["status"] == "completed"
    ends_at = time.monotonic() + 30
    while client.get("/healthz").body["records_skipped"] == before:
        assert time.monotonic() < ends_at
    assert "is passed" in here.said("gateway")


def test_submitting_needs_no_executor_and_waiting_has_an_end(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Nobody takes requests: the task is in the log, and the answer says that it has not begun."""
    with place(kafka_bootstrap, tmp_path, {"short": SCRIPT["short"]}) as alone:
        client = alone.gateway()
        answer = client.post("/tasks", {"task_id": "early", "agent": "short", "input": "go"})
        assert (answer.status, answer.body["task_id"]) == (202, "early")
        assert client.get("/runs/early").status == 404
        alone.start("intake")
        alone.start("executor")
        assert client.ends("early")["status"] == "completed"
