"""Reads a benchmark's log back: a number counts only if the events behind it are there, in the order promised."""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from runfold.adapters.topics import TopicNames
from runfold.events.codec import Codec
from runfold.events.types import ToolReported
from runfold.ports import InvariantViolation

TIMEOUT_S = 30.0


@dataclass(slots=True)
class LogFigures:
    events: int = 0
    bytes: int = 0  # keys, values and headers
    turns: int = 0  # replies
    model_calls: int = 0
    reports: int = 0
    ended: int = 0
    _dispatches: set[str] = field(default_factory=set)


def checked_log(servers: str, names: TopicNames) -> LogFigures:
    """Count the whole topic. Raises InvariantViolation where a report stands before its dispatch."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"bench-{uuid4().hex}", "enable.auto.commit": False})
    figures, codec = LogFigures(), Codec()
    try:
        for number in consumer.list_topics(names.events, timeout=TIMEOUT_S).topics[names.events].partitions:
            place = TopicPartition(names.events, number, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            consumer.assign([place])
            position = 0
            while position < end:
                for message in consumer.consume(1000, 1.0):
                    position = (message.offset() or 0) + 1
                    headers: Any = message.headers()
                    _count(figures, codec, message.key(), message.value() or b"", dict(headers or ()))
    finally:
        consumer.close()
    return figures


def _count(figures: LogFigures, codec: Codec, key: bytes | None, value: bytes, headers: dict[str, bytes]) -> None:
    figures.events += 1
    figures.bytes += len(key or b"") + len(value) + sum(len(name) + len(content) for name, content in headers.items())
    match headers["ce_type"]:
        case b"runfold.ModelReplied":
            figures.turns += 1
        case b"runfold.ModelCallStarted":
            figures.model_calls += 1
        case b"runfold.RunFinished":
            figures.ended += 1
        case b"runfold.ToolDispatchStarted":
            figures._dispatches.add(headers["ce_id"].decode())  # noqa: SLF001  ours
        case b"runfold.ToolReported":
            figures.reports += 1
            event = codec.decode(value)
            if not isinstance(event, ToolReported) or event.dispatch not in figures._dispatches:  # noqa: SLF001  ours
                raise InvariantViolation(f"a report stands before its dispatch: {event}")
