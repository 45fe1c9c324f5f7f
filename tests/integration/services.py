"""The services' own mains in threads of this process, on a real Kafka, with a scripted model: as a deployment has them."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.adapters.topics import TopicNames, delete_topics
from runfold.dev.model_server import ModelServer
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter
from runfold.events.types import Event
from runfold.executor import main as executor_main
from runfold.installation import topics_of
from runfold.intake import main as intake_main
from runfold.ports import Permanent, Transient
from runfold.settings import Settings
from tests.integration.oracle import Seen

PATIENCE_S = 60.0
PARTITIONS = 1
AGENT = 'model = "{model}"\ninstructions = "Be brief."\ntools = {tools}\n'
CODEC = Codec()
WRITER = HeaderWriter("/test")


class Service:
    """One main in a thread. `ended` waits for its end and answers what it raised, if anything."""

    def __init__(self, run: Callable[[Settings, threading.Event], None], settings: Settings) -> None:
        self._stop = threading.Event()
        self._raised: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(run, settings), daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[Settings, threading.Event], None], settings: Settings) -> None:
        try:
            run(settings, self._stop)
        except (Permanent, Transient) as error:
            self._raised = error

    def ended(self) -> Exception | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the service does not end"
        return self._raised

    def stop(self) -> Exception | None:
        self._stop.set()
        return self.ended()


class Installation:
    """Topics of one test, services on them, and everything that was written to them."""

    def __init__(
        self, bootstrap: str, prefix: str, folder: Path, model: ModelServer, agents: Mapping[str, str], **more: Any
    ) -> None:
        files = folder / "agents"
        files.mkdir()
        for name, text in agents.items():
            (files / f"{name}.toml").write_text(text)
        self.settings = Settings(
            bootstrap_servers=bootstrap, topic_prefix=prefix, run_partitions=PARTITIONS, agents=files,
            blobs=folder / "blobs", model_base_url=model.base_url, executor_name="one", **more,
        )  # fmt: skip
        self.names = topics_of(self.settings)
        self.services: list[Service] = []
        self.producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 0})
        self.reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "fetch.wait.max.ms": 10})
        topics = self.names.all()
        self.reader.assign([TopicPartition(topic, n, 0) for topic in topics for n in range(self.partitions(topic))])
        self.records: list[Seen] = []
        self.stamps: dict[tuple[str, int, int], int] = {}  # Kafka's, by topic, partition and offset

    def partitions(self, topic: str) -> int:
        return 1 if topic == self.names.quarantine else PARTITIONS

    def executor(self) -> Service:
        self.services.append(Service(executor_main.run, self.settings))
        return self.services[-1]

    def intake(self) -> Service:
        self.services.append(Service(intake_main.run, self.settings))
        return self.services[-1]

    def put(self, topic: str, key: str, event: Event, event_id: str, value: bytes | None = None) -> None:
        """Produce, and wait until it is there."""
        headers = WRITER.fact(type(event).__name__, event_id, time.time_ns() // 1_000_000)
        self.producer.produce(topic, CODEC.encode(event) if value is None else value, key, headers=headers)
        assert self.producer.flush(PATIENCE_S) == 0

    def read(self) -> None:
        for message in self.reader.consume(500, 0.02):
            assert message.error() is None, message.error()
            seen = Seen(
                topic=str(message.topic()).removeprefix(f"{self.names.prefix}."),
                partition=message.partition() or 0,
                offset=message.offset() or 0,
                key=(message.key() or b"").decode(),
                value=message.value() or b"",
                headers={name: value or b"" for name, value in message.headers() or ()},
            )
            self.stamps[seen.topic, seen.partition, seen.offset] = message.timestamp()[1]
            self.records.append(seen)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + PATIENCE_S
        while not is_so():
            seen = [(each.topic, each.type) for each in self.records]
            assert time.monotonic() < ends_at, f"{what}: not within {PATIENCE_S:g} s; {seen}"
            self.read()

    def of(self, topic: str, kind: str = "") -> list[Seen]:
        return [each for each in self.records if each.topic == topic and kind in ("", each.type)]

    def close(self) -> None:
        for service in self.services:
            service.stop()
        self.reader.close()


@contextmanager
def installation(
    bootstrap: str,
    prefix: str,
    folder: Path,
    script: Mapping[str, Any],
    *,
    agent_tools: Sequence[str] = (),
    **more: Any,
) -> Iterator[Installation]:
    """`script`: agents by name, each with the replies of its model. They all have the same tools."""
    agents = {name: AGENT.format(model=name, tools=list(agent_tools)) for name in script}
    with ModelServer(script) as model:
        made = Installation(bootstrap, prefix, folder, model, agents, **more)
        try:
            yield made
        finally:
            made.close()
            delete_topics(bootstrap, TopicNames(prefix))
