"""Recorded replies of real providers, played through a real server to the real adapter: whole, and cut anywhere."""

import json
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runfold.adapters.openai_chat import ChatModel, ChatOptions
from runfold.core.transcript import UserMessage, calls_of, parse_arguments, text_of
from runfold.dev.model_server import ModelServer
from runfold.events.types import ModelFailed, ModelReplied
from runfold.ports import ModelOutcome, ModelRequest

SHARED = Path(__file__).parents[2].parent / "shared"
CASES = SHARED / "cases"
WAIT_S = 120.0
CUTS = 13  # positions in each stream

if not SHARED.exists():
    pytest.skip(f"NOT RUN: no recorded replies here, {SHARED} does not exist", allow_module_level=True)

STREAMS = sorted(CASES.glob("vercel-ai-sse/*.chunks.txt"))
CHAT_STREAMS = [path for path in STREAMS if "__responses__" not in path.name]
WHOLE = sorted(CASES.glob("vercel-ai-sse/*.json"))
CASSETTES = sorted(CASES.glob("pydantic-ai-cassettes/*.json"))

# file: finish reason, names of the calls, input, output and total tokens
EXPECTED = {
    "alibaba__alibaba-reasoning": ("stop", [], (24, 1355, 1379)),
    "alibaba__alibaba-text": ("stop", [], (18, 779, 797)),
    "alibaba__alibaba-tool-call": ("tool_calls", ["weather"], (295, 22, 317)),
    "deepseek__chat__deepseek-reasoning": ("stop", [], (18, 219, 237)),
    "deepseek__chat__deepseek-text": ("length", [], (13, 400, 413)),
    "deepseek__chat__deepseek-tool-call": ("tool_calls", ["weather"], (339, 83, 422)),
    "groq__groq-tool-call": ("tool_calls", ["weather"], (210, 15, 225)),
    "mistral__mistral-incremental-tool-call": ("tool_calls", ["webSearchTool"], (171, 14, 185)),
    "moonshotai__moonshotai-stream": ("stop", [], (9, 12, 21)),
    "openai-compatible__chat__xai-text": ("stop", [], (12, 2, 354)),
    "openai-compatible__chat__xai-tool-call": ("tool_calls", ["weather"], (307, 26, 560)),
    "openai__chat__azure-model-router.1": ("stop", [], (15, 78, 93)),
}


@dataclass(frozen=True)
class Played:
    """One recorded exchange, as a scenario."""

    name: str
    reply: dict[str, Any]
    stream: bool = True


def name_of(path: Path) -> str:
    return path.name.removesuffix(".chunks.txt").removesuffix(".json")


def interactions() -> Iterator[Played]:
    """Every Chat exchange of the cassettes."""
    for path in CASSETTES:
        for number, exchange in enumerate(json.loads(path.read_text())):
            if not exchange["uri"].endswith("/chat/completions"):
                continue
            name, status = f"{path.stem} {number}", exchange["status"]["code"]
            if exchange.get("response_sse") is not None:
                yield Played(name, {"sse": exchange["response_sse"], "status": status})
            else:
                yield Played(name, {"body": exchange["response_json"], "status": status}, stream=False)


def cut_streams() -> Iterator[tuple[str, int, bytes]]:
    """(name, position, what is left) of every stream, at positions spread over it."""
    for path in CHAT_STREAMS:
        whole = sse_of(path).encode()
        for number in range(CUTS):
            position = (len(whole) - 1) * number // (CUTS - 1)
            yield name_of(path), position, whole[:position]


def sse_of(path: Path) -> str:
    return "".join(f"data: {line}\n\n" for line in path.read_text().splitlines() if line)


def play(scenarios: list[Played]) -> dict[str, ModelOutcome]:
    """Serve them all, ask for each once, and wait for every outcome."""
    outcomes: queue.Queue[ModelOutcome] = queue.Queue()
    with ModelServer({played.name: [played.reply] for played in scenarios}) as server:
        models = {
            s: ChatModel(ChatOptions(base_url=server.base_url, stream=s, in_flight_max=16)) for s in (True, False)
        }
        for played in scenarios:
            asked = ModelRequest(
                run_id=played.name, call=played.name, model="m", instructions="", tools=[], result_schema=None,
                transcript=[UserMessage(text="go")], time_limit_s=WAIT_S,
            )  # fmt: skip
            models[played.stream].start(asked, outcomes.put, lambda _offset, _text: None)
        answered = [outcomes.get(timeout=WAIT_S) for _ in scenarios]
        for model in models.values():
            model.close()
    return {outcome.model_call: outcome for outcome in answered}


def test_the_recordings_are_there() -> None:
    """A test over an empty folder would pass for ever."""
    assert {name_of(path) for path in CHAT_STREAMS} == set(EXPECTED), (
        f"recorded Chat streams are missing in {CASES}: see its README"
    )
    assert WHOLE, f"recorded whole replies are missing in {CASES}"
    assert len(list(interactions())) >= 24, f"recorded cassettes are missing in {CASES}"


@pytest.mark.parametrize("send_done", [True, False])
def test_every_recorded_stream_is_read(*, send_done: bool) -> None:
    """Finish reason, calls with arguments that parse, and usage are what was recorded."""
    lines = {name_of(p): [line for line in p.read_text().splitlines() if line] for p in CHAT_STREAMS}
    scenarios = [Played(name, {"chunks": chunks, "send_done": send_done}) for name, chunks in lines.items()]
    seen = {}
    for name, reply in play(scenarios).items():
        assert isinstance(reply, ModelReplied), (name, reply)
        seen[name] = summary(reply)
    assert seen == EXPECTED


def summary(reply: ModelReplied) -> tuple[str, list[str], tuple[int | None, int | None, int | None]]:
    """What the table above says of a reply."""
    calls = calls_of(reply.items)
    assert all(parse_arguments(call.arguments)[2] == "" for call in calls)
    assert calls or text_of(reply.items)
    usage = reply.usage
    tokens = (usage.input_tokens, usage.output_tokens, usage.total_tokens) if usage else (None, None, None)
    return reply.finish_reason, [call.name for call in calls], tokens


def test_a_recorded_stream_cut_anywhere_is_a_reply_or_a_failure() -> None:
    """By a lost connection or by a clean end, in the middle of a line or of a character: never anything else."""
    scenarios, is_finished = [], {}
    for name, position, left in cut_streams():
        has_finish = any(b'"finish_reason":"' in event for event in left.split(b"\n\n")[:-1])
        cut = {"sse": left.decode(errors="surrogateescape") or "\n", "fault": {"cut_after_bytes": len(left)}}
        for kind, reply in (("clean", {"sse": cut["sse"]}), ("lost", cut)):
            scenarios.append(Played(f"{name} {position} {kind}", reply))
            is_finished[scenarios[-1].name] = has_finish
    for name, outcome in play(scenarios).items():
        if is_finished[name]:
            assert isinstance(outcome, ModelReplied), (name, outcome)
        else:
            assert isinstance(outcome, ModelFailed), (name, outcome)
            assert (outcome.kind, outcome.retryable) == ("broken_stream", True), name


def test_every_recorded_whole_body_has_an_outcome() -> None:
    """Chat replies are replies; error bodies are failures of their kind; bodies of another API are failures."""
    bodies = {name_of(path): json.loads(path.read_text()) for path in WHOLE}
    outcomes = play([Played(name, {"body": body}, stream=False) for name, body in bodies.items()])
    assert len(outcomes) == len(bodies)
    for name, outcome in outcomes.items():
        if "choices" in bodies[name]:
            assert isinstance(outcome, ModelReplied), (name, outcome)
            summary(outcome)
        else:
            assert isinstance(outcome, ModelFailed), (name, outcome)
    kinds = {name: o.kind for name, o in outcomes.items() if isinstance(o, ModelFailed) and "error" in bodies[name]}
    assert kinds["openai__responses__openai-error.1"] == "no_money"
    assert kinds["openai__responses__reasoning-model-temperature-error"] == "bad_request"


def test_every_recorded_exchange_has_its_outcome() -> None:
    """Two of them are Groq's complaint about its model's call, once with status 400 and once inside a stream."""
    scenarios = list(interactions())
    failures = []
    for name, outcome in play(scenarios).items():
        if isinstance(outcome, ModelFailed):
            failures.append((name, outcome.kind))
        else:
            summary(outcome)
    assert sorted(failures) == [
        ("test_groq__test_tool_use_failed_error 0", "malformed_call"),
        ("test_groq__test_tool_use_failed_error_streaming_with_text 0", "malformed_call"),
    ]


def test_signatures_to_send_back_are_kept() -> None:
    """Gemini's compatible API wants its thought signature again, and sends calls without an id."""
    [call] = [p for p in interactions() if "tool_calls_without_id 0" in p.name]
    outcome = play([call])[call.name]
    assert isinstance(outcome, ModelReplied)
    extras = [json.loads(item.extra) for item in outcome.items if item.extra]
    assert any("thought_signature" in extra for extra in extras)
    assert [item.provider_id for item in calls_of(outcome.items)] == [""]
