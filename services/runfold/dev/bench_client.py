"""A client for measuring: submits tasks and waits for their completions, with as little of its own as possible.

A run is measured from producing TaskRequested to reading TaskCompleted.
"""

import asyncio
import threading
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.adapters.kafka_client import taken
from runfold.adapters.topics import TopicNames
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter, new_event_id
from runfold.events.types import TaskRequested


class BenchClient:
    """Use inside a running asyncio loop; `close` ends its thread."""

    def __init__(self, bootstrap: str, names: TopicNames, agent: str, text: str = "go") -> None:
        self._names = names
        self._agent = agent
        self._text = text
        self._codec = Codec()
        self._headers = HeaderWriter("/runfold/bench")
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "partitioner": "murmur2_random"})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"bench-{uuid4().hex}",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 1,
            }
        )
        topic = self._consumer.list_topics(names.completions, timeout=30).topics[names.completions]
        ends = [TopicPartition(names.completions, number) for number in topic.partitions]
        for end in ends:
            end.offset = self._consumer.get_watermark_offsets(end, timeout=30)[1]
        self._consumer.assign(ends)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    async def run(self) -> bytes:
        """One task, from its request to its completion; answers the TaskCompleted's bytes."""
        task_id = uuid4().hex
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[task_id.encode()] = future
        event = TaskRequested(task_id=task_id, agent=self._agent, input=self._text)
        headers = self._headers.fact("TaskRequested", new_event_id(), 0)
        self._producer.produce(self._names.requests, self._codec.encode(event), task_id, headers=headers)  # type: ignore[arg-type]  # its list is invariant
        self._producer.poll(0)
        return await future

    def _read(self) -> None:
        while not self._stopped.is_set():
            messages = taken(self._consumer, 500, 0.5)
            found = [(message.key(), message.value()) for message in messages if message.error() is None]
            if found:
                self._loop.call_soon_threadsafe(self._resolve, found)

    def _resolve(self, found: list[tuple[bytes | None, bytes | None]]) -> None:
        for key, value in found:
            future = self._waiting.pop(key or b"", None)
            if future is not None and value is not None and not future.done():
                future.set_result(value)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()
