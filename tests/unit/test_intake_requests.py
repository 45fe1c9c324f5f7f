"""What each kind of record on task-requests amounts to: the malformed ones above all."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from runfold.core.limits import INLINE_BYTES_MAX, RECORD_BYTES_MAX
from runfold.events.codec import Codec
from runfold.events.types import (
    PARTS_ELSEWHERE,
    CancelRequested,
    Event,
    RunRequested,
    TaskCancelled,
    TaskRequested,
    ToolSettled,
)
from runfold.intake.finished import RECENT_MAX, FinishedIds
from runfold.intake.requests import Understood, Unreadable, digest_of, traceparent_of, understand

CODEC = Codec()
GOOD = TaskRequested(task_id="t-1", agent="clerk", input="count to four")
PARTS = '[{"type": "text", "text": "hello"}]'
REQUESTED = [("ce_type", b"runfold.TaskRequested")]
CANCELLED = [("ce_type", b"runfold.TaskCancelled")]


def good(**changed: Any) -> TaskRequested:
    return replace(GOOD, **changed)


def read(value: bytes | Event | None, key: bytes | None = b"t-1", headers=None, place: str = "0-7") -> Understood:
    bytes_ = value if value is None or isinstance(value, bytes) else CODEC.encode(value)
    return understand(CODEC, key, bytes_, headers, place)


def asked(value: bytes | Event | None, **more) -> RunRequested:
    event = read(value, **more).event
    assert isinstance(event, RunRequested)
    return event


def encoded_text(field: str, raw: bytes) -> bytes:
    """A TaskRequested whose text field holds these bytes: what a client that does not check sends."""
    marker = "x" * len(raw)
    return CODEC.encode(good(**{field: marker})).replace(marker.encode(), raw)


@pytest.mark.parametrize("headers", [None, [], REQUESTED, CANCELLED, [("ce_type", b"\xff")]])
def test_a_request_is_known_by_its_body(headers) -> None:
    """Headers may be missing, or wrong: the framing names the schema."""
    event = asked(GOOD, headers=headers)
    assert (event.task_id, event.agent, event.input, event.problem) == ("t-1", "clerk", "count to four", None)


def test_nothing_of_a_request_is_lost() -> None:
    """Every field that a task has reaches its run."""
    task = TaskRequested(
        task_id="t-1",
        definition='{"model": "m"}',
        input_parts=PARTS,
        interactive=True,
        result_schema='{"type": "object"}',
        limits={"tool_ms": 5},
        not_before_ms=1,
        expires_at_ms=2,
        priority=3,
        labels={"team": "a"},
        parent="p-1",
    )
    event = asked(task)
    for name in TaskRequested.__slots__:  # type: ignore[attr-defined]
        assert getattr(event, name) == getattr(task, name), name
    assert event.request_digest == digest_of(task)


def test_the_body_names_the_task_not_the_key() -> None:
    """A producer may key by customer: the id is in the body."""
    assert read(GOOD, key=b"customer-9").task_id == "t-1"
    assert read(GOOD, key=None).task_id == "t-1"


MALFORMED = [
    ({"agent": ""}, "exactly one"),
    ({"definition": "{}"}, "exactly one"),
    ({"agent": "a" * 201}, "agent's name"),
    ({"agent": "a\nb"}, "agent's name"),
    ({"input": ""}, "input is empty"),
    ({"input": " \n"}, "input is empty"),
    ({"input_parts": PARTS}, "not both"),
    ({"input": "", "input_parts": "[]"}, "input_parts must be"),
    ({"input": "", "input_parts": "[1]"}, "input_parts must be"),
    ({"input": "", "input_parts": '[{"text": "no type"}]'}, "input_parts must be"),
    ({"input": "", "input_parts": '{"type": "text"}'}, "input_parts must be"),
    ({"input": "", "input_parts": "[{]"}, "input_parts is not valid JSON"),
    ({"agent": "", "definition": "{"}, "definition is not valid JSON"),
    ({"agent": "", "definition": ""}, "definition is not valid JSON"),
    ({"agent": "", "definition": "[]"}, "definition must be a JSON object"),
    ({"agent": "", "definition": '{"a": NaN}'}, "definition is not valid JSON: NaN"),
    ({"agent": "", "definition": '{"a": "\0"}'}, "definition is not valid JSON"),
    ({"result_schema": "null"}, "result_schema must be a JSON object"),
    ({"result_schema": "[" * 100_000}, "result_schema is nested too deeply"),
    ({"result_schema": '{"a": ' + "9" * 5000 + "}"}, "result_schema is not valid JSON"),
    ({"limits": {"tool_mss": 1}}, "unknown limit 'tool_mss'"),
    ({"limits": {"tool_ms": -1}}, "must be positive"),
    ({"limits": {"x" * 1_000_000: 1}}, "unknown limit 'xxx"),
    ({"not_before_ms": -1}, "not_before_ms is -1"),
    ({"expires_at_ms": 1_700_000_000_000_000}, "milliseconds since 1970"),
    ({"not_before_ms": 10, "expires_at_ms": 10}, "expires before"),
    ({"labels": {"": "x"}}, "label ''"),
    ({"labels": {"a\0": "x"}}, "label 'a\\x00'"),
    ({"labels": {"n" * 101: "x"}}, "label 'nnn"),
    ({"labels": {"n": "x" * 1001}}, "label 'n' has 1,001"),
    ({"labels": {str(n): "" for n in range(65)}}, "65 labels"),
    ({"parent": ""}, "parent: the task id is empty"),
    ({"result_schema": json.dumps({"a": "x" * RECORD_BYTES_MAX})}, "bytes beside a large input"),
]


@pytest.mark.requirement("R34")
@pytest.mark.parametrize(
    ("fields", "said"), MALFORMED, ids=[f"{n}-{said[:20]}" for n, (_, said) in enumerate(MALFORMED)]
)
def test_a_malformed_request_becomes_a_run_that_is_only_rejected(fields, said: str) -> None:
    """Under its own id, with words that say what to do, in a record that fits."""
    meant = read(good(**fields))
    assert isinstance(meant.event, RunRequested)
    assert said in (meant.event.problem or "")
    assert (meant.task_id, meant.event.task_id, meant.payload) == ("t-1", "t-1", None)
    assert meant.event.request_digest == digest_of(good(**fields))
    assert len(CODEC.encode(meant.event)) < 20_000


def test_a_rejected_task_keeps_what_its_sender_knows_it_by() -> None:
    """Labels and parent come back with the completion, unless they are what is wrong."""
    wrong = good(agent="", labels={"team": "a"}, parent="p-1")
    assert (asked(wrong).labels, asked(wrong).parent) == ({"team": "a"}, "p-1")
    assert asked(replace(wrong, labels={"": ""}, parent="")).labels == {}


UNDECODABLE = {
    "not Avro": b'{"task_id": "t-1"}',
    "empty": b"",
    "a tombstone": None,
    "an unknown schema": b"\xc3\x01" + b"\7" * 8 + b"body",
    "a registry that nobody set": b"\0\0\0\0\7body",
    "a body cut short": CODEC.encode(GOOD)[:14],
    "bytes left over": CODEC.encode(GOOD) + b"more",
    "half a surrogate pair as bytes": encoded_text("input", b"\xed\xa0\x80"),
    "bytes that are no text": encoded_text("agent", b"\xff\xfe"),
    "an event, but no request": CODEC.encode(ToolSettled(model_call="m", position=0, outcome="cancelled", message="")),
    "an empty id": CODEC.encode(good(task_id="")),
    "an id that is too long": CODEC.encode(good(task_id="t" * 201)),
    "an id with NUL": CODEC.encode(good(task_id="t\0")),
    "an id with a line break": CODEC.encode(good(task_id="t\n")),
}


@pytest.mark.requirement("R34")
@pytest.mark.parametrize("value", UNDECODABLE.values(), ids=UNDECODABLE)
@pytest.mark.parametrize("headers", [None, REQUESTED])
def test_a_body_without_a_readable_id_is_rejected_under_its_key(value: bytes | None, headers) -> None:
    """Somebody waits for an answer under that key."""
    event = asked(value, headers=headers)
    assert (event.task_id, event.request_digest) == ("t-1", hashlib.sha256(value or b"").hexdigest())
    assert event.problem


@pytest.mark.requirement("R34")
@pytest.mark.parametrize("value", UNDECODABLE.values(), ids=UNDECODABLE)
@pytest.mark.parametrize("key", [None, b"", b"\xff", b"t" * 201, b"a\0b"])
def test_without_a_readable_key_either_it_is_for_quarantine(value: bytes | None, key: bytes | None) -> None:
    """Nobody can be told; it is kept with the reason."""
    event = read(value, key=key).event
    assert isinstance(event, Unreadable)
    assert event.reason


@pytest.mark.parametrize("said", [b"runfold.TaskCancelled", b"runfold.SomethingNewer", b"com.other.Thing"])
def test_an_unreadable_record_that_says_it_is_no_request_begins_no_run(said: bytes) -> None:
    """A rejected run under that id would swallow the request that is still to come."""
    event = read(b"?", headers=[("ce_type", said)]).event
    assert isinstance(event, Unreadable)
    assert said.decode() in event.reason


def test_text_is_made_safe() -> None:
    """NUL in a text, NUL and half pairs hidden in the escapes of JSON: no store after us takes them."""
    task = replace(
        GOOD,
        input="a\0b",
        labels={"n": "a\0b"},
        result_schema='{"a": "\\u0000", "\\uD800": ["\\ud83d\\ude00"]}',
    )
    event = asked(task)
    assert (event.input, event.labels, event.problem) == ("a\ufffdb", {"n": "a\ufffdb"}, None)
    assert json.loads(event.result_schema or "") == {"a": "\ufffd", "\ufffd": ["\U0001f600"]}


def test_json_that_is_safe_stays_as_it_came() -> None:
    """A schema's bytes are the user's: spaces, order and escapes."""
    text = '{ "b": "\\u00e4", "a": 1.0}'
    assert asked(good(result_schema=text)).result_schema == text


@pytest.mark.parametrize("field", ["input", "input_parts"])
def test_a_large_input_goes_beside(field: str) -> None:
    """Stored whole, referred to by its digest; one byte less stays inline."""
    frame = len('[{"type": "text", "text": ""}]') if field == "input_parts" else 0

    def content(size: int) -> str:
        text = "y" * (size - frame)
        return text if field == "input" else json.dumps([{"type": "text", "text": text}])

    inline, beside = (read(good(**{"input": "", field: content(INLINE_BYTES_MAX + n)})) for n in (0, 1))
    assert isinstance(inline.event, RunRequested)
    assert isinstance(beside.event, RunRequested)
    assert (inline.payload, inline.event.input_ref) == (None, None)
    assert beside.payload == content(INLINE_BYTES_MAX + 1).encode()
    assert beside.event.input_ref is not None
    assert beside.event.input_ref.sha256 == hashlib.sha256(beside.payload).hexdigest()
    said = None if field == "input" else PARTS_ELSEWHERE  # a text may look like parts: nobody has to guess
    assert (beside.event.input, beside.event.input_parts, beside.event.problem) == ("", said, None)


def test_the_digest_is_that_of_the_request() -> None:
    """The order of a map and the framing do not matter, every field does."""
    one, other = ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert digest_of(good(labels=one)) == digest_of(good(labels=other))
    changed = [good(priority=1), good(input="x"), good(interactive=True)]
    assert len({digest_of(task) for task in [GOOD, *changed]}) == 4
    same = hashlib.sha256(b'{"agent": "clerk", "input": "count to four", "task_id": "t-1"}').hexdigest()
    assert digest_of(GOOD) == same, "a field that a later schema adds must not change the digest of older requests"


@pytest.mark.requirement("R10")
def test_a_cancel_is_one_command_however_often_it_is_read() -> None:
    """Its id comes from its place; another record is another command."""
    cancel = TaskCancelled(task_id="t-1", reason="no\0w" + "x" * 2000)
    first = read(cancel, headers=CANCELLED).event
    assert isinstance(first, CancelRequested)
    assert first == read(cancel).event
    assert first != read(cancel, place="0-8").event
    assert first.reason.startswith("no\ufffdw")
    assert len(first.reason) == 1000


def test_a_cancel_without_an_id_is_for_quarantine() -> None:
    """Its key is not asked: it may be a customer's."""
    assert isinstance(read(TaskCancelled(task_id="")).event, Unreadable)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", True),
        (b"x" * 1_000_000, False),
        (b"00-short", False),
        (b"\xff", False),
        (b"", False),
    ],
)
def test_only_a_trace_context_is_passed_on(value: bytes, kept: bool) -> None:
    """Headers are not bounded by anybody else."""
    assert traceparent_of([("other", b"1"), ("traceparent", value)]) == (value.decode() if kept else "")
    assert not traceparent_of(None)


def test_ids_that_run_are_remembered_within_bounds() -> None:
    """The oldest are forgotten first; those that ended are not."""
    memory = FinishedIds()
    memory.ended("old", "a")
    for number in range(RECENT_MAX + 1):
        memory.began(f"r-{number}", "a")
    assert not memory.is_known("r-0")
    assert memory.is_known("r-1")
    assert memory.is_ended("old")
    assert memory.has_other_body("r-1", "b")
    assert not memory.has_other_body("r-0", "b")


def test_a_completion_that_does_not_say_what_was_asked_fits_every_repeat() -> None:
    """A run whose beginning was lost has no request: its repeat is a repeat."""
    memory = FinishedIds()
    memory.ended("t", "")
    assert not memory.has_other_body("t", "b")
    memory.deleted("t")
    assert not memory.is_known("t")
