"""The records that the intake sends, each made so that it fits its topic."""

from dataclasses import dataclass, field

from runfold.core.limits import shortened
from runfold.events.codec import Codec
from runfold.events.envelope import Headers, HeaderWriter
from runfold.events.types import CancelRequested, Quarantined, RunRequested
from runfold.intake.ports import Outgoing, Topic
from runfold.intake.requests import KEPT_CHARS, header, traceparent_of
from runfold.ports import Clock, Delivery

QUARANTINED_BYTES_MAX = 256 * 1024  # of the record's value; its place says where the whole is
QUARANTINED_HEADERS_MAX = 64 * 1024  # bytes of all together
REROUTED = "runfold-rerouted"
CANCEL_TYPE = b"runfold.TaskCancelled"


@dataclass(slots=True)
class Writer:
    codec: Codec
    clock: Clock
    source: str
    topic: str  # that is read
    _headers: HeaderWriter = field(init=False)

    def __post_init__(self) -> None:
        self._headers = HeaderWriter(self.source)

    def fact(self, task_id: str, event: RunRequested | CancelRequested, event_id: str, request: Delivery) -> Outgoing:
        """What a request came to, in the trace of the request."""
        trace = traceparent_of(request.headers)
        headers = self._headers.fact(type(event).__name__, event_id, self.clock.wall_ms(), trace)
        return Outgoing(topic=Topic.EVENTS, key=task_id, value=self.codec.encode(event), headers=headers)

    def rerouted(self, request: Delivery, task_id: str, partition: int, times: int) -> Outgoing:
        """The same record for another partition."""
        headers = [(name, value) for name, value in request.headers or [] if name != REROUTED]
        headers.append((REROUTED, b"%d" % times))
        value = request.value or b""
        return Outgoing(topic=Topic.REQUESTS, partition=partition, key=task_id, value=value, headers=headers)

    def quarantined(self, request: Delivery, reason: str, *, with_record: bool = True) -> Outgoing:
        """The record with its place and the reason; its id is its place, so that reading it again is no second one."""
        event = Quarantined(
            topic=self.topic,
            partition=request.partition,
            offset=request.offset,
            reason=shortened(reason, KEPT_CHARS),
            key=None if request.key is None else request.key[:KEPT_CHARS],
            value=(request.value or b"")[:QUARANTINED_BYTES_MAX] if with_record else None,
            headers=_kept(request.headers) if with_record else {},
        )
        event_id = f"quarantined-{self.topic}-{request.partition}-{request.offset}"
        headers = self._headers.fact("Quarantined", event_id, self.clock.wall_ms())
        key = (request.key or b"")[:KEPT_CHARS].decode("utf-8", "replace")
        return Outgoing(topic=Topic.QUARANTINE, key=key, value=self.codec.encode(event), headers=headers)


def is_cancel(headers: Headers | None) -> bool:
    """Does the record say of itself that it is a TaskCancelled? Without opening it."""
    return header(headers, "ce_type") == CANCEL_TYPE


def reroutes(headers: Headers | None) -> int:
    """How often this record was sent to another partition already. What is no number counts as often."""
    said = header(headers, REROUTED) or b"0"
    return int(said) if said.isdigit() and len(said) < 4 else 1_000


def _kept(headers: Headers | None) -> dict[str, bytes]:
    """The first headers, as many as fit."""
    kept, size = {}, 0
    for name, value in headers or []:
        size += len(name) + len(value or b"")
        if size > QUARANTINED_HEADERS_MAX:
            break
        kept[name] = value or b""
    return kept
