"""A run as server-sent events: what the log has, then what comes, without a gap and without a repeat.

Every accepted event has its offset as id, so that a client that was cut off goes on with `Last-Event-ID`; void decisions
do not appear. Text that the model is writing comes as `text`, what tools print as `output`, both without an id: they are
for eyes only, and a reader applies `core.live_text` to them. The stream ends after TaskReported.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any

from runfold.core.fold import EFFECTIVE, FACT, WITHOUT_EFFECT, Taken
from runfold.events.envelope import Record
from runfold.events.types import Event, ModelTextDelta
from runfold.gateway.gateway import Gateway, in_thread
from runfold.gateway.problems import Refused, busy
from runfold.gateway.reading import Joined, Span
from runfold.gateway.watching import Shown, Watch

KEPT = 5_000  # records that wait for a slow client; beyond, it is cut off and goes on where it was
AT_ONCE = 200
STREAMS_MAX = 1_000
HEARTBEAT = b": alive\n\n"


def event_line(record: Record, taken: Taken | None) -> bytes | None:
    """One event; None for what was not accepted."""
    if taken not in (FACT, EFFECTIVE, WITHOUT_EFFECT):
        return None
    said: dict[str, Any] = {
        "type": record.type, "event_id": record.event_id, "partition": record.partition, "offset": record.offset,
        "at_ms": record.time_ms, "taken": taken.value,
    }  # fmt: skip
    if record.follows is not None:
        said |= {"follows": record.follows, "revision": record.revision, "phase": record.phase}
    said["data"] = None if record.body is None else asdict(record.body)
    return _line(record.type, said, f"id: {record.offset}\n")


def shown_line(body: Event) -> bytes:
    return _line("text" if isinstance(body, ModelTextDelta) else "output", asdict(body))


def _line(event: str, data: dict[str, Any], extra: str = "") -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=_told)
    return f"{extra}event: {event}\ndata: {text}\n\n".encode()


def _told(value: object) -> object:
    """What JSON has no form for: the bytes of a checkpoint."""
    return f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)


class Past:
    """What the log has of a run, read again in pieces, by whichever thread; `close` waits for the piece under way."""

    def __init__(self, gateway: Gateway, run_id: str, span: Span, after: int) -> None:
        self.is_over = False
        self._records = gateway.reading.refold(run_id, span)
        self._after = after
        self._lock = threading.Lock()

    def lines(self) -> bytes | None:
        """The next events behind `after`; None after the last."""
        with self._lock:
            found: list[bytes] = []
            while len(found) < AT_ONCE and not self.is_over:
                _, record, taken = next(self._records, (None, None, None))
                if record is None:
                    return b"".join(found) or None
                if record.offset > self._after and (line := event_line(record, taken)):
                    found.append(line)
                self.is_over = _ends(record, taken)
            return b"".join(found) or None

    def close(self) -> None:
        with self._lock:
            self._records.close()


async def open_stream(gateway: Gateway, run_id: str, after: int) -> AsyncIterator[bytes] | None:
    """The stream of the run's events behind that offset; None if it has ended and all of it was seen."""
    if gateway.streams >= STREAMS_MAX:
        raise busy(f"{STREAMS_MAX:,} streams are open already")
    reported_at = await gateway.look(run_id, lambda tracked, _: tracked.reported_at)
    return None if 0 <= reported_at <= after else _stream(gateway, run_id, after)


async def _stream(gateway: Gateway, run_id: str, after: int) -> AsyncIterator[bytes]:
    watch = Watch(asyncio.get_running_loop(), keep=KEPT)
    gateway.streams += 1
    try:
        with gateway.reading.watching(run_id, watch):
            joined = await in_thread(lambda: gateway.reading.joined(run_id, watch))
            if joined is None:
                return
            past = Past(gateway, run_id, joined.span, after)
            try:
                while lines := await in_thread(past.lines):
                    yield lines
            finally:
                await asyncio.to_thread(past.close)
            if not past.is_over:
                yield b"".join(_so_far(gateway, joined)) or HEARTBEAT
                async for lines in _live(gateway, watch, after):
                    yield lines
    except Refused:  # Kafka does not answer: the client comes back, with the last id it saw
        return
    finally:
        gateway.streams -= 1


def _so_far(gateway: Gateway, joined: Joined) -> Iterator[bytes]:
    for each in joined.texts:
        shown = gateway.reading.shown(each)
        is_old = (
            shown is not None and isinstance(shown.body, ModelTextDelta) and shown.body.model_call != joined.writing
        )
        if shown is not None and not is_old:
            yield shown_line(shown.body)


async def _live(gateway: Gateway, watch: Watch, after: int) -> AsyncIterator[bytes]:
    while not gateway.is_stopping:
        if not await watch.came(gateway.heartbeat_s):
            yield HEARTBEAT
        items = watch.taken()
        lines = []
        for item, taken in items:
            if isinstance(item, Shown):
                lines.append(shown_line(item.body))
            elif item.offset > after and (line := event_line(item, taken)):
                lines.append(line)
        if lines:
            yield b"".join(lines)
        is_over = any(isinstance(item, Record) and _ends(item, taken) for item, taken in items)
        if is_over or watch.is_overrun:
            return


def _ends(record: Record, taken: Taken | None) -> bool:
    return record.type == "TaskReported" and taken is EFFECTIVE
