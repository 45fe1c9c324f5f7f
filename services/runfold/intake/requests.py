"""What a record of task-requests amounts to. Pure.

A request that can be read becomes a RunRequested; one that is malformed becomes a RunRequested with its `problem`, which
the executor answers with a TaskCompleted of status rejected; one whose task id cannot even be read is for quarantine.

The body says what it is: its framing names its schema, so that a plain Kafka client needs no headers. `ce_type` is asked
only about a body that cannot be read: then nothing but a request may be rejected under the id in its key, because a
rejection of an unreadable cancel would be the first record of a run that nobody asked for.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace

from runfold.core.limits import INLINE_BYTES_MAX, RECORD_BYTES_MAX, limit_problem, shortened
from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import TYPE_PREFIX, Headers
from runfold.events.text import sanitised, sanitised_tree
from runfold.events.types import (
    PARTS_ELSEWHERE,
    BlobRef,
    CancelRequested,
    RunRequested,
    TaskCancelled,
    TaskRequested,
)

TASK_ID_CHARS_MAX = 200  # it becomes a Kafka key, a header, a row and a part of names
KEPT_CHARS = 1_000  # of a malformed request's texts, and of what we say about them
LABELS_MAX = 64
LABEL_NAME_CHARS_MAX = 100
LABEL_CHARS_MAX = 1_000
TIME_MS_MAX = 253_402_300_799_999  # the end of year 9999: later ones are microseconds, and no calendar shows them
TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
DEFAULTS: Mapping[str, object] = {
    field.name: field.default if field.default_factory is MISSING else field.default_factory()
    for field in fields(TaskRequested)
}
UNSAFE_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")  # NUL, or half of a surrogate pair


@dataclass(frozen=True, slots=True)
class Unreadable:
    """For quarantine: nobody can be told."""

    reason: str


@dataclass(frozen=True, slots=True)
class Understood:
    """One record, understood. A payload must be in the blob store before the event that refers to it is appended."""

    task_id: str
    event: RunRequested | CancelRequested | Unreadable
    payload: bytes | None = None


def understand(codec: Codec, key: bytes | None, value: bytes | None, headers: Headers | None, place: str) -> Understood:
    """What the record amounts to. `place` names the record: a TaskCancelled read again is the same command."""
    try:
        event = codec.decode(value or b"")
    except Undecodable as error:
        reason = f"the request cannot be decoded: {error}"
        said = header(headers, "ce_type")
        if said is not None and said != f"{TYPE_PREFIX}TaskRequested".encode():
            return Understood("", Unreadable(shortened(f"{reason}; its ce_type is {said!r}", KEPT_CHARS)))
        return _named_by_key(key, value, reason)
    if isinstance(event, TaskCancelled):
        problem = task_id_problem(event.task_id)
        if problem is not None:
            return Understood("", Unreadable(problem))
        reason = shortened(sanitised(event.reason), KEPT_CHARS)
        return Understood(event.task_id, CancelRequested(command_id=f"cancel-{place}", reason=reason, sender="task"))
    if not isinstance(event, TaskRequested):
        return _named_by_key(key, value, f"a {type(event).__name__} is not a request")
    problem = task_id_problem(event.task_id)
    if problem is not None:
        return _named_by_key(key, value, problem)
    return _requested(codec, event)


def header(headers: Headers | None, name: str) -> bytes | None:
    """The first header of that name."""
    return next((value or b"" for found, value in headers or () if found == name), None)


def traceparent_of(headers: Headers | None) -> str:
    """The trace context to pass on; what is not one is dropped, since headers have no limit of their own."""
    found = header(headers, "traceparent") or b""
    return found.decode() if TRACEPARENT.fullmatch(found) else ""


def task_id_problem(task_id: str) -> str | None:
    """Why this cannot be a task id, or None."""
    if not task_id:
        return "the task id is empty"
    if len(task_id) > TASK_ID_CHARS_MAX:
        return f"the task id has {len(task_id):,} characters; {TASK_ID_CHARS_MAX} are the limit"
    return None if task_id.isprintable() else "the task id holds characters that cannot be printed"


def digest_of(event: TaskRequested) -> str:
    """The same for the same request, however it was framed and whatever optional fields a later schema adds."""
    found = {name: value for name, default in DEFAULTS.items() if (value := getattr(event, name)) != default}
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def request_problem(event: TaskRequested) -> str | None:
    """What is wrong with a request that could be read, in words that say what to do; None if nothing."""
    if bool(event.agent) == (event.definition is not None):
        return "name an agent, or give a definition: exactly one of the two"
    if event.agent and (len(event.agent) > TASK_ID_CHARS_MAX or not event.agent.isprintable()):
        return f"the agent's name must be printable and at most {TASK_ID_CHARS_MAX} characters"
    if event.input_parts is not None and event.input:
        return "give input or input_parts: not both"
    if event.input_parts is None and not event.input.strip():
        return "the input is empty"
    if event.parent is not None and (problem := task_id_problem(event.parent)) is not None:
        return f"parent: {problem}"
    return _json_problem(event) or _time_problem(event) or label_problem(event.labels) or limit_problem(event.limits)


def label_problem(labels: Mapping[str, str]) -> str | None:
    """What is wrong with a task's labels, or None."""
    if len(labels) > LABELS_MAX:
        return f"{len(labels):,} labels; {LABELS_MAX} are the limit"
    for name, value in labels.items():
        if not name or len(name) > LABEL_NAME_CHARS_MAX or not name.isprintable():
            return f"label {name!r}: a name is printable and has 1 to {LABEL_NAME_CHARS_MAX} characters"
        if len(value) > LABEL_CHARS_MAX:
            return f"label {name!r} has {len(value):,} characters; {LABEL_CHARS_MAX:,} are the limit"
    return None


def _named_by_key(key: bytes | None, value: bytes | None, reason: str) -> Understood:
    """The body does not say whose it is; perhaps the key does."""
    try:
        named = (key or b"").decode()
    except UnicodeDecodeError:
        named = ""
    if task_id_problem(named) is not None:
        return Understood("", Unreadable(shortened(reason, KEPT_CHARS)))
    digest = hashlib.sha256(value or b"").hexdigest()
    problem = shortened(reason, KEPT_CHARS)
    return Understood(named, RunRequested(task_id=named, agent="", request_digest=digest, problem=problem))


def _requested(codec: Codec, event: TaskRequested) -> Understood:
    digest, problem = digest_of(event), request_problem(event)
    if problem is not None:
        return Understood(event.task_id, _rejected(event, digest, problem))
    asked = RunRequested(
        task_id=event.task_id,
        agent=event.agent,
        definition=_safe_json(event.definition),
        input=sanitised(event.input),
        input_parts=_safe_json(event.input_parts),
        interactive=event.interactive,
        result_schema=_safe_json(event.result_schema),
        limits=event.limits,
        not_before_ms=event.not_before_ms,
        expires_at_ms=event.expires_at_ms,
        priority=event.priority,
        labels={name: sanitised(text) for name, text in event.labels.items()},
        parent=event.parent,
        depth=max(0, event.depth),
        request_digest=digest,
    )
    content = (asked.input if asked.input_parts is None else asked.input_parts).encode()
    payload = content if len(content) > INLINE_BYTES_MAX else None
    if payload is not None:
        ref = BlobRef(sha256=hashlib.sha256(payload).hexdigest(), size_bytes=len(payload))
        parts = None if asked.input_parts is None else PARTS_ELSEWHERE
        asked = replace(asked, input="", input_parts=parts, input_ref=ref)
    size = len(codec.encode(asked))
    if size > RECORD_BYTES_MAX:
        problem = f"the request needs {size:,} bytes beside a large input; {RECORD_BYTES_MAX:,} are the limit"
        return Understood(event.task_id, _rejected(event, digest, problem))
    return Understood(event.task_id, asked, payload)


def _rejected(event: TaskRequested, digest: str, problem: str) -> RunRequested:
    """Always fits a record. Keeps what its sender knows the task by."""
    return RunRequested(
        task_id=event.task_id,
        agent=sanitised(event.agent[:KEPT_CHARS]),
        input=sanitised(event.input[:KEPT_CHARS]),
        labels={n: sanitised(t) for n, t in event.labels.items()} if label_problem(event.labels) is None else {},
        parent=event.parent if event.parent and task_id_problem(event.parent) is None else None,
        depth=max(0, event.depth),
        request_digest=digest,
        problem=shortened(problem, KEPT_CHARS),
    )


def _time_problem(event: TaskRequested) -> str | None:
    times = {"not_before_ms": event.not_before_ms, "expires_at_ms": event.expires_at_ms}
    for name, value in times.items():
        if value is not None and not 0 <= value <= TIME_MS_MAX:
            return f"{name} is {value}: give milliseconds since 1970"
    if event.expires_at_ms is not None and event.expires_at_ms <= (event.not_before_ms or -1):
        return "the task expires before it may begin: expires_at_ms must be later than not_before_ms"
    return None


def _json_problem(event: TaskRequested) -> str | None:
    for name in ("definition", "result_schema", "input_parts"):
        text = getattr(event, name)
        if text is None:
            continue
        try:
            found = json.loads(text, parse_constant=_no_constant)
        except RecursionError:
            return f"{name} is nested too deeply"
        except ValueError as error:
            return f"{name} is not valid JSON: {error}"
        if name != "input_parts" and not isinstance(found, dict):
            return f"{name} must be a JSON object"
        if name == "input_parts" and not _are_parts(found):
            return "input_parts must be a JSON list of objects, each with a type"
    return None


def _are_parts(found: object) -> bool:
    return (
        isinstance(found, list)
        and bool(found)
        and all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in found)
    )


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _safe_json(text: str | None) -> str | None:
    """The text as it came, unless its escapes hide what no reader after us could store."""
    if text is None or not UNSAFE_ESCAPE.search(text):
        return text
    return json.dumps(sanitised_tree(json.loads(text)), ensure_ascii=False)
