"""Records that cannot be used: copied to the quarantine topic with their place and the reason, then passed.

A record's quarantine id is its topic, partition and offset: reading it again quarantines nothing new for readers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runfold.events.codec import Codec
from runfold.events.envelope import Headers, Record
from runfold.events.types import Quarantined
from runfold.ports import Delivery, Outbox

VALUE_BYTES_MAX = 256 * 1024  # what is kept of the record itself; its place says where the whole is


@dataclass(slots=True)
class Quarantine:
    outbox: Outbox
    codec: Codec
    topic: str
    headers: Callable[[str, str], Headers]  # of an event type and id
    count: int = 0

    def put(self, delivery: Delivery, reason: str) -> None:
        """A record as it came from Kafka."""
        self._publish(
            Quarantined(
                topic=self.topic,
                partition=delivery.partition,
                offset=delivery.offset,
                reason=reason,
                key=delivery.key,
                value=(delivery.value or b"")[:VALUE_BYTES_MAX],
                headers={name: value or b"" for name, value in delivery.headers or ()},
            )
        )

    def put_record(self, record: Record, reason: str) -> None:
        """A record whose envelope could be read, but not its body."""
        self._publish(
            Quarantined(
                topic=self.topic,
                partition=record.partition,
                offset=record.offset,
                reason=reason,
                key=record.run_id.encode(),
                value=record.value[:VALUE_BYTES_MAX],
            )
        )

    def put_run(self, run_id: str, reason: str) -> None:
        """A run that could not be restored at all."""
        self._publish(Quarantined(topic=self.topic, partition=-1, offset=-1, reason=reason, key=run_id.encode()))

    def _publish(self, quarantined: Quarantined) -> None:
        self.count += 1
        event_id = f"quarantined-{quarantined.topic}-{quarantined.partition}-{quarantined.offset}"
        headers = self.headers("Quarantined", event_id)
        key = (quarantined.key or b"").decode("utf-8", "replace")
        self.outbox.quarantine(key, self.codec.encode(quarantined), headers)
