"""How a thread tells a coroutine that something came: no polling, and a bound on what waits to be taken."""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from runfold.core.fold import Taken
from runfold.events.envelope import Record
from runfold.events.types import Event


class Shown(NamedTuple):
    """A record of run-stream."""

    body: Event


Item = tuple[Record | Shown, Taken | None]


@dataclass(slots=True, eq=False)
class Watch:
    """One coroutine that follows one run. `keep` is 0 for one that only wants to be woken."""

    loop: asyncio.AbstractEventLoop
    keep: int = 0
    wants_position: bool = False  # wakes whenever the position of any partition may have moved
    is_overrun: bool = False  # more came than is kept: something is missing
    _items: deque[Item] = field(default_factory=deque)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, item: Record | Shown, taken: Taken | None) -> None:
        """Any thread."""
        if self.keep:
            if len(self._items) >= self.keep:
                self.is_overrun = True
            else:
                self._items.append((item, taken))
        self.wake()

    def wake(self) -> None:
        """Any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._came.set)

    async def came(self, timeout_s: float) -> bool:
        """Wait until something came. Answers whether it did."""
        try:
            await asyncio.wait_for(self._came.wait(), timeout_s)
        except TimeoutError:
            return False
        finally:
            self._came.clear()
        return True

    def taken(self) -> list[Item]:
        """What came, taken out."""
        found = []
        while self._items:
            found.append(self._items.popleft())
        return found

    def clear(self) -> None:
        self._items.clear()
        self.is_overrun = False
