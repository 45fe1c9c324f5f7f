"""What a record of task-requests amounts to. Pure.

A request that can be read becomes a RunRequested; one that is malformed becomes a RunRequested with its `problem`, which
the executor answers with a TaskCompleted of status rejected; one whose task id cannot even be read is for quarantine.
"""

import hashlib
import json
from dataclasses import dataclass, replace

from runfold.core.limits import INLINE_BYTES_MAX, RECORD_BYTES_MAX, limit_problem
from runfold.events.codec import Codec, Undecodable
from runfold.events.text import sanitised
from runfold.events.types import CancelRequested, RunRequested, TaskCancelled, TaskRequested
from runfold.ports import Blobs

TASK_ID_CHARS_MAX = 200
KEPT_CHARS = 1_000  # of a malformed request's texts


@dataclass(frozen=True, slots=True)
class Unreadable:
    """For quarantine: nobody can be told."""

    reason: str


Understood = RunRequested | CancelRequested | Unreadable


def task_id_problem(task_id: str) -> str | None:
    """Why this cannot be a task id, or None: it becomes a Kafka key, a header, a row and a part of names."""
    if not task_id:
        return "the task id is empty"
    if len(task_id) > TASK_ID_CHARS_MAX:
        return f"the task id has {len(task_id)} characters; {TASK_ID_CHARS_MAX} are the limit"
    if not task_id.isprintable() or sanitised(task_id) != task_id:
        return "the task id holds characters that cannot be printed"
    return None


def understand(
    codec: Codec, blobs: Blobs, key: bytes | None, value: bytes | None, place: str
) -> tuple[str, Understood]:
    """(task id, what the record amounts to). `place` names the record: a repeated TaskCancelled is the same command."""
    named = (key or b"").decode("utf-8", "replace")
    try:
        event = codec.decode(value or b"")
    except Undecodable as error:
        return _unreadable(named, f"the request cannot be decoded: {error}")
    if isinstance(event, TaskCancelled):
        problem = task_id_problem(event.task_id)
        if problem is not None:
            return event.task_id, Unreadable(problem)
        command = CancelRequested(
            command_id=f"cancel-{place}", reason=sanitised(event.reason)[:KEPT_CHARS], sender="task"
        )
        return event.task_id, command
    if not isinstance(event, TaskRequested):
        return _unreadable(named, f"a {type(event).__name__} is not a request")
    problem = task_id_problem(event.task_id)
    if problem is not None:
        return _unreadable(named, problem)
    return event.task_id, _requested(codec, blobs, event)


def _unreadable(named: str, reason: str) -> tuple[str, Understood]:
    """The body does not say whose it is; perhaps the key does."""
    if task_id_problem(named) is not None:
        return named, Unreadable(reason)
    return named, RunRequested(task_id=named, agent="", problem=reason)


def digest_of(event: TaskRequested) -> str:
    """The same for the same request, however it was framed."""
    found = {name: getattr(event, name) for name in TaskRequested.__slots__}  # type: ignore[attr-defined]  # a slotted class
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _requested(codec: Codec, blobs: Blobs, event: TaskRequested) -> RunRequested:
    asked = RunRequested(
        task_id=event.task_id,
        agent=sanitised(event.agent),
        definition=event.definition,
        input=sanitised(event.input),
        input_parts=event.input_parts,
        interactive=event.interactive,
        result_schema=event.result_schema,
        limits=event.limits,
        not_before_ms=event.not_before_ms,
        expires_at_ms=event.expires_at_ms,
        priority=event.priority,
        labels=event.labels,
        parent=event.parent,
        request_digest=digest_of(event),
        problem=request_problem(event),
    )
    content = asked.input_parts if asked.input_parts is not None else asked.input
    if asked.problem is None and len(content.encode()) > INLINE_BYTES_MAX:
        asked = replace(asked, input="", input_parts=None, input_ref=blobs.put(content.encode()))
    size = len(codec.encode(asked))
    if size > RECORD_BYTES_MAX or asked.problem is not None:
        problem = (
            asked.problem or f"the request needs {size:,} bytes beside its input; {RECORD_BYTES_MAX:,} are the limit"
        )
        return RunRequested(
            task_id=event.task_id,
            agent=asked.agent[:KEPT_CHARS],
            input=asked.input[:KEPT_CHARS],
            request_digest=asked.request_digest,
            problem=problem,
        )
    return asked


def request_problem(event: TaskRequested) -> str | None:
    """What is wrong with a request that could be read, in words that say what to do; None if nothing."""
    if bool(event.agent) == (event.definition is not None):
        return "name an agent, or give a definition: exactly one of the two"
    for name in ("definition", "input_parts", "result_schema"):
        text = getattr(event, name)
        if text is not None and (problem := _json_problem(text)) is not None:
            return f"{name} is not valid JSON: {problem}"
    if not event.input.strip() and event.input_parts is None:
        return "the input is empty"
    for name, value in (("not_before_ms", event.not_before_ms), ("expires_at_ms", event.expires_at_ms)):
        if value is not None and value < 0:
            return f"{name} is negative"
    return limit_problem(event.limits)


def _json_problem(text: str) -> str | None:
    try:
        found = json.loads(text)
        text.encode()
    except (ValueError, RecursionError) as error:
        return str(error)
    return None if isinstance(found, dict | list) else "it must be an object or a list"
