"""What every route needs: the runs as they were read, the log to append to, and how long to wait."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter, new_event_id
from runfold.events.partitioner import murmur2_partition
from runfold.events.types import Event
from runfold.gateway.ports import Sender, Sent, Topic
from runfold.gateway.problems import busy, unknown_run
from runfold.gateway.reading import Reading
from runfold.gateway.tracked import Tracked
from runfold.gateway.watching import Watch
from runfold.ports import Blobs, Clock, Transient

T = TypeVar("T")
CATCH_UP_S = 5.0  # to the end of a partition, before a run counts as unknown
READ_BACK_S = 10.0  # our own record; beyond, whoever asked may ask again under the same command id


@dataclass(slots=True, kw_only=True)
class Gateway:
    reading: Reading
    sender: Sender
    codec: Codec
    blobs: Blobs
    clock: Clock
    partitions: int
    shorten: Callable[[str, int], str]  # a long output for the model: text, bytes
    token: str = ""
    version: str = ""
    secret: str = ""  # signs the tokens of dispatches
    heartbeat_s: float = 10.0
    start_wait_s: float = 5.0  # how long a submit waits for its run to begin
    headers: HeaderWriter = field(default_factory=lambda: HeaderWriter("/runfold/gateway"))
    streams: int = 0  # open event streams
    is_stopping: bool = False

    # ---- looking

    async def look(self, run_id: str, view: Callable[[Tracked, int], T]) -> T:
        """What `view` makes of the run. Raises Refused for an unknown one: after everything in the log was read."""
        found = await self._looked(run_id, view)
        if found is None:
            await self.catch_up(run_id)
            found = await self._looked(run_id, view)
        if found is None:
            raise unknown_run(run_id)
        return found

    async def _looked(self, run_id: str, view: Callable[[Tracked, int], T]) -> T | None:
        return await in_thread(lambda: self.reading.look(run_id, view))

    async def catch_up(self, run_id: str) -> None:
        """Read to where the run's partition ends now. Raises Refused if that takes too long."""
        partition = murmur2_partition(run_id.encode(), self.partitions)
        end = await in_thread(lambda: self.reading.history.end_of(partition))
        watch = Watch(asyncio.get_running_loop(), wants_position=True)
        with self.reading.watching(run_id, watch):
            if not await until(lambda: self._is_at(partition, end), watch, CATCH_UP_S):
                raise busy("this gateway is still reading the log: ask again in a moment")

    async def _is_at(self, partition: int, end: int) -> bool:
        return self.reading.position(partition) >= end

    # ---- appending

    async def append(self, topic: Topic, key: str, event: Event, event_id: str, traceparent: str = "") -> Sent:
        """Send one record and wait for Kafka's word on it."""
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[Sent] = loop.create_future()

        def told(sent: Sent) -> None:
            loop.call_soon_threadsafe(_settle, settled, sent)

        headers = self.headers.fact(type(event).__name__, event_id, self.clock.wall_ms(), traceparent)
        self.sender.send(topic, key, self.codec.encode(event), headers, told)
        return await settled

    def new_id(self) -> str:
        return new_event_id()


def _settle(future: "asyncio.Future[Sent]", sent: Sent) -> None:
    if not future.done():
        future.set_result(sent)


async def in_thread(work: Callable[[], T]) -> T:
    """What may wait for Kafka or the disk, beside the event loop."""
    try:
        return await asyncio.to_thread(work)
    except Transient as error:
        raise busy(f"{error}; ask again in a moment") from error


async def until(is_so: Callable[[], Coroutine[Any, Any, T]], watch: Watch, wait_s: float) -> T:
    """Ask again whenever the watch is woken, until the answer is true or the time is over. Answers the last one."""
    ends_at_s = time.monotonic() + wait_s
    while True:
        answer = await is_so()
        left_s = ends_at_s - time.monotonic()
        if answer or left_s <= 0 or not await watch.came(left_s):
            return answer or await is_so()
