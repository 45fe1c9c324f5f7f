"""Appends events for an executor: encodes, checks the size, remembers own facts until they are read back.

A decision that is lost is decided anew, under a new id. A fact is not: the tool ran, the reply was paid for. So facts
stay here until their read-back, and are sent again under the same id when Kafka says that one may be lost.
Facts come from worker threads too; a dict's single operations are atomic, and nothing here needs more.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from runfold.core.limits import RECORD_BYTES_MAX
from runfold.core.phases import Phase
from runfold.core.state import RunState
from runfold.events.codec import Codec
from runfold.events.envelope import EVENT_ID_AT, Headers, HeaderWriter, Record, new_event_id
from runfold.events.types import Decision, Fact
from runfold.ports import Clock, InvariantViolation, RunLog


class TooLarge(Exception):
    """The event does not fit a record. Found before anything was sent."""


@dataclass(slots=True)
class Sent:
    """A record of ours that was not read back yet. Reading it back finds it here: nothing is decoded twice."""

    record: Record
    headers: Headers
    sent_at_ms: int


@dataclass(slots=True)
class Writer:
    log: RunLog
    codec: Codec
    clock: Clock
    source: str
    new_id: Callable[[], str] = new_event_id
    sent: dict[bytes, Sent] = field(default_factory=dict)  # by event id, as it stands in the header
    _headers: HeaderWriter = field(init=False)

    def __post_init__(self) -> None:
        self._headers = HeaderWriter(self.source)

    def decide(self, partition: int, state: RunState, event: Decision, phase: Phase, now_ms: int) -> Record:
        """Append a decision on top of this state. Answers it as a record to fold ahead; its offset is not known yet."""
        event_id = self.new_id()
        name = type(event).__name__
        value = self.codec.encode(event)
        if len(value) > RECORD_BYTES_MAX:
            raise InvariantViolation(f"{name} of {len(value)} bytes: decisions must always fit a record")
        headers = self._headers.decision(
            name,
            event_id,
            self.clock.wall_ms(),
            follows=state.last,
            revision=state.revision + 1,
            phase=phase,
            traceparent=state.traceparent,
        )
        record = Record(
            partition=partition,
            offset=-1,
            time_ms=now_ms,
            run_id=state.run_id,
            event_id=event_id,
            type=name,
            follows=state.last,
            revision=state.revision + 1,
            phase=phase,
            value=value,
            body=event,
        )
        self._send(record, headers)
        return record

    def fact(
        self, partition: int, run_id: str, event: Fact, now_ms: int, *, event_id: str = "", traceparent: str = ""
    ) -> Record:
        """Append a fact. Raises TooLarge: what replaces it is the caller's choice. Any thread."""
        event_id = event_id or self.new_id()
        name = type(event).__name__
        value = self.codec.encode(event)
        if len(value) > RECORD_BYTES_MAX:
            raise TooLarge(f"{name} of {len(value):,} bytes; a record holds {RECORD_BYTES_MAX:,}")
        headers = self._headers.fact(name, event_id, self.clock.wall_ms(), traceparent)
        record = Record(
            partition=partition,
            offset=-1,
            time_ms=now_ms,
            run_id=run_id,
            event_id=event_id,
            type=name,
            value=value,
            body=event,
        )
        self._send(record, headers)
        return record

    def _send(self, record: Record, headers: Headers) -> None:
        self.sent[headers[EVENT_ID_AT][1]] = Sent(record, headers, self.clock.monotonic_ms())
        self.log.append(record.partition, record.run_id, record.value, headers)

    def read_back(self, headers: Headers | None) -> Record | None:
        """Our own record with these headers, if it is one that was not read back yet."""
        if headers is None or len(headers) <= EVENT_ID_AT:
            return None
        sent = self.sent.pop(headers[EVENT_ID_AT][1], None)
        return None if sent is None else sent.record

    def is_unread(self, event_id: str) -> bool:
        return event_id.encode() in self.sent

    def headers(self, name: str, event_id: str, traceparent: str = "") -> Headers:
        """Headers of a record for another topic."""
        return self._headers.fact(name, event_id, self.clock.wall_ms(), traceparent)

    def send_again(self, partition: int, run_id: str) -> None:
        """The own facts of a run that were not read back yet, under their old ids."""
        for sent in list(self.sent.values()):
            record = sent.record
            if record.partition == partition and record.run_id == run_id and record.follows is None:
                sent.sent_at_ms = self.clock.monotonic_ms()
                self.log.append(partition, run_id, record.value, sent.headers)

    def forget_unread(self, age_ms_max: int, owned: Container[int]) -> None:
        """Records of partitions that went away are never read back here; by now they landed or never will.

        Those of partitions that we own are kept, however long Kafka is away: a result is not lost.
        """
        horizon_ms = self.clock.monotonic_ms() - age_ms_max
        for event_id, sent in list(self.sent.items()):
            if sent.sent_at_ms < horizon_ms and sent.record.partition not in owned:
                self.sent.pop(event_id, None)
