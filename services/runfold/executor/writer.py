"""Appends events for an executor: encodes, checks the size, remembers own facts until they are read back.

A decision that is lost is decided anew, under a new id. A fact is not: the tool ran, the reply was paid for. So facts
stay here until their read-back, and are sent again under the same id when Kafka says that one may be lost.
Facts come from worker threads too; a dict's single operations are atomic, and nothing here needs more.
"""

from dataclasses import dataclass, field

from runfold.core.limits import RECORD_BYTES_MAX
from runfold.core.phases import Phase
from runfold.core.state import RunState
from runfold.events.codec import Codec
from runfold.events.envelope import Headers, HeaderWriter, Record, new_event_id
from runfold.events.types import Decision, Fact
from runfold.ports import Clock, InvariantViolation, RunLog


class TooLarge(Exception):
    """The event does not fit a record. Found before anything was sent."""


@dataclass(slots=True)
class UnreadFact:
    partition: int
    run_id: str
    event: Fact
    value: bytes
    headers: Headers
    sent_at_ms: int


@dataclass(slots=True)
class Writer:
    log: RunLog
    codec: Codec
    clock: Clock
    source: str
    unread: dict[str, UnreadFact] = field(default_factory=dict)
    _headers: HeaderWriter = field(init=False)

    def __post_init__(self) -> None:
        self._headers = HeaderWriter(self.source)

    def decide(self, partition: int, state: RunState, event: Decision, phase: Phase, now_ms: int) -> Record:
        """Append a decision on top of this state. Answers it as a record to fold ahead; its offset is not known yet."""
        event_id = new_event_id()
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
        self.log.append(partition, state.run_id, value, headers)
        return Record(
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

    def fact(
        self, partition: int, run_id: str, event: Fact, now_ms: int, *, event_id: str = "", traceparent: str = ""
    ) -> Record:
        """Append a fact. Raises TooLarge: what replaces it is the caller's choice. Any thread."""
        event_id = event_id or new_event_id()
        name = type(event).__name__
        value = self.codec.encode(event)
        if len(value) > RECORD_BYTES_MAX:
            raise TooLarge(f"{name} of {len(value):,} bytes; a record holds {RECORD_BYTES_MAX:,}")
        headers = self._headers.fact(name, event_id, self.clock.wall_ms(), traceparent)
        self.unread[event_id] = UnreadFact(partition, run_id, event, value, headers, self.clock.monotonic_ms())
        self.log.append(partition, run_id, value, headers)
        return Record(
            partition=partition,
            offset=-1,
            time_ms=now_ms,
            run_id=run_id,
            event_id=event_id,
            type=name,
            value=value,
            body=event,
        )

    def headers(self, name: str, event_id: str, traceparent: str = "") -> Headers:
        """Headers of a record for another topic."""
        return self._headers.fact(name, event_id, self.clock.wall_ms(), traceparent)

    def send_again(self, partition: int, run_id: str) -> None:
        """The own facts of a run that were not read back yet, under their old ids."""
        for unread in list(self.unread.values()):
            if unread.partition == partition and unread.run_id == run_id:
                self.log.append(partition, run_id, unread.value, unread.headers)

    def forget_unread(self, age_ms_max: int) -> None:
        """Facts of partitions that went away are never read back here; by now they landed or never will."""
        horizon_ms = self.clock.monotonic_ms() - age_ms_max
        for event_id, unread in list(self.unread.items()):
            if unread.sent_at_ms < horizon_ms:
                self.unread.pop(event_id, None)
