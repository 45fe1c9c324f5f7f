"""What stands beside a committed position: which log that was, the low-water mark, and the parked runs it has left.

The mark is the smallest offset that anything active depends on: reading from there rebuilds every run. Not the parked
ones, which may rest for months. They are named instead, by short digests: a new owner must know that a request which
repeats one of them begins nothing. Kafka bounds the string; one that would not fit is left out, and then the next
owner reads from the start of the partition, where the parked runs are found as well.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from runfold.ports import Committed, LogIdentity, Permanent

METADATA_BYTES_MAX = 4_095  # of Kafka: offset.metadata.max.bytes


@dataclass(frozen=True, slots=True)
class Mark:
    offset: int
    away: frozenset[str]  # short ids of the parked runs that began before it


def short_id(run_id: str) -> str:
    """Two runs of one partition do not share it by chance."""
    return blake2b(run_id.encode(), digest_size=8).hexdigest()


def written_mark(identity: LogIdentity, offset: int, away: Iterable[str]) -> str:
    """The metadata string; empty if it would not fit."""
    found = {
        "cluster": identity.cluster,
        "topic": identity.topic,
        "partitions": identity.partitions,
        "mark": offset,
        "parked": sorted(away),
    }
    text = json.dumps(found, separators=(",", ":"))
    return text if len(text.encode()) <= METADATA_BYTES_MAX else ""


def read_mark(committed: Committed, identity: LogIdentity) -> tuple[Mark | None, str]:
    """The mark, or None and why there is none. Raises Permanent if the number of partitions changed."""
    if not committed.metadata:
        return None, "no low-water mark was committed"
    try:
        found = json.loads(committed.metadata)
        same = (found["cluster"], found["topic"]) == (identity.cluster, identity.topic)
        mark, partitions = Mark(int(found["mark"]), frozenset(map(str, found["parked"]))), int(found["partitions"])
    except (ValueError, KeyError, TypeError):
        return None, "the commit's metadata is not ours"
    if not same:
        return None, "the low-water mark is of another cluster or topic"
    if partitions != identity.partitions:
        raise Permanent(
            f"run-events has {identity.partitions} partitions, but was recorded with {partitions}: runs would change "
            "partition. Recreate the topic with the recorded number, or start with a new prefix"
        )
    return mark, ""
