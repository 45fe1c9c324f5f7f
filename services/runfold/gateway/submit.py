"""Submitting: a task becomes a record of task-requests; the answer waits until its run has begun.

The same id with the same body is the same task; with another body it is refused. Which body came first is the log's to
say: the digest in RunRequested is compared, whoever sent it.
"""

import asyncio
import json
from typing import Any

from runfold.core.limits import REQUEST_BYTES_MAX
from runfold.events.types import RunRequested, TaskRequested
from runfold.gateway.gateway import Gateway, in_thread, until
from runfold.gateway.models import Completion, Submitted, Task
from runfold.gateway.ports import Topic
from runfold.gateway.problems import Refused
from runfold.gateway.results import completion_within
from runfold.gateway.watching import Watch
from runfold.intake.requests import understand


def json_text(value: Any) -> str | None:
    """The same text for the same value: digests are made of it."""
    if value is None:
        return None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def request_of(task: Task, task_id: str) -> TaskRequested:
    return TaskRequested(
        task_id=task_id,
        agent=task.agent,
        definition=json_text(task.definition),
        input=task.input,
        input_parts=json_text(task.input_parts),
        interactive=task.interactive,
        result_schema=json_text(task.result_schema),
        limits=task.limits,
        not_before_ms=task.not_before_ms,
        expires_at_ms=task.expires_at_ms,
        priority=task.priority,
        labels=task.labels,
    )


def checked(gateway: Gateway, request: TaskRequested) -> str:
    """The request's digest. Raises Refused for what intake would reject."""
    value = gateway.codec.encode(request)
    if len(value) > REQUEST_BYTES_MAX:
        raise Refused(413, f"the task has {len(value):,} bytes; {REQUEST_BYTES_MAX:,} are the limit")
    event = understand(gateway.codec, request.task_id.encode(), value, [], "").event
    if not isinstance(event, RunRequested):
        raise Refused(422, "this is no task")
    if event.problem is not None:
        raise Refused(422, event.problem)
    return event.request_digest


async def submit(gateway: Gateway, task: Task, wait_s: float | None, traceparent: str) -> tuple[int, Submitted]:
    """The status and the answer. Raises Refused."""
    task_id = task.task_id or gateway.new_id()
    request = request_of(task, task_id)
    digest = checked(gateway, request)
    known = await _digest_of(gateway, task_id)
    status = 200
    if known is None:
        status, known = await _sent(gateway, request, digest, traceparent)
    if known != digest:
        raise Refused(409, f"the task id {task_id!r} exists with another body: use a new id for a new task")
    completion: Completion | None = None
    if wait_s is not None:
        completion = await completion_within(gateway, task_id, wait_s)
    return status, Submitted(task_id=task_id, run_id=task_id, request_digest=digest, completion=completion)


async def _sent(gateway: Gateway, request: TaskRequested, digest: str, traceparent: str) -> tuple[int, str]:
    """Ask for the run and wait until it has begun. Answers the status and the digest of the request that counts."""
    task_id = request.task_id
    watch = Watch(asyncio.get_running_loop())
    with gateway.reading.watching(task_id, watch):
        sent = await gateway.append(Topic.REQUESTS, task_id, request, gateway.new_id(), traceparent)
        if sent.problem:
            detail = f"Kafka did not take it, or may have: {sent.problem}; submit again under the same task_id"
            raise Refused(503, detail, headers={"Retry-After": "1"})
        began = await until(lambda: _digest_of(gateway, task_id), watch, gateway.start_wait_s)
    return (201, began) if began is not None else (202, digest)


async def _digest_of(gateway: Gateway, task_id: str) -> str | None:
    """Of the request that the run began with; None if it did not begin, as far as was read."""
    return await in_thread(
        lambda: gateway.reading.look(
            task_id, lambda tracked, _: tracked.state.task.request_digest if tracked.state.task is not None else ""
        )
    )
