"""What the intake needs of Kafka."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from runfold.events.envelope import Headers
from runfold.ports import Delivery

Acknowledged = Callable[[bool], None]  # called on the polling thread, during a later poll or flush


class RequestListener(Protocol):
    """Called inside `RequestLog.poll`."""

    def on_assigned(self, partitions: list[int]) -> None: ...

    def on_revoked(self, partitions: list[int]) -> None: ...


class RequestLog(Protocol):
    @property
    def partitions(self) -> int:
        """Of task-requests, and of task-completions too."""

    @property
    def topic(self) -> str: ...

    def open(self, listener: RequestListener) -> None: ...

    def poll(self, timeout_s: float) -> list[Delivery]:
        """The next requests of our partitions."""

    def read_completions(self, partitions: Sequence[int]) -> list[Delivery]:
        """All completions of these partitions, from the start to the end as it is now; they are followed from there."""

    def completions(self) -> list[Delivery]:
        """Completions that came since."""

    def append(self, run_id: str, value: bytes, headers: Headers, acknowledged: Acknowledged) -> None:
        """To run-events."""

    def reroute(self, partition: int, task_id: str, value: bytes, headers: Headers, acknowledged: Acknowledged) -> None:
        """To another partition of task-requests."""

    def quarantine(self, key: str, value: bytes, headers: Headers, acknowledged: Acknowledged) -> None: ...

    def commit(self, positions: Mapping[int, int], *, wait: bool) -> None: ...

    def flush(self) -> None:
        """Wait, within bounds, until what was appended is acknowledged."""

    def close(self) -> None: ...
