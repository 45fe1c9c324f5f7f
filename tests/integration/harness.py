"""Executors as processes, a real log, and hands that append to it and read it: what the crash tests share."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import kill
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter
from runfold.events.types import Event, RunRequested
from tests.integration.oracle import Seen

PATIENCE_S = 120.0
CODEC = Codec()
PROGRAM = Path(__file__).with_name("child_executor.py")


@dataclass(eq=False)
class Child:
    """One executor process, as the program that forked it tells of it."""

    options: dict[str, Any]
    pid: int = 0
    status: int | None = None
    told: dict[str, dict[str, Any]] = field(default_factory=dict)  # by event
    news: threading.Condition = field(default_factory=threading.Condition)

    def hear(self, said: dict[str, Any]) -> None:
        with self.news:
            self.told[said["event"]] = said
            self.pid = said.get("pid", self.pid)
            self.status = said.get("status", self.status)
            self.news.notify_all()

    def wait(self, event: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """What was told of this event, which must come or the process's end."""
        with self.news:
            self.news.wait_for(lambda: event in self.told or "ended" in self.told, timeout_s)
        assert event in self.told, f"{self.options['name']}: no {event!r}, only {self.told}"
        return self.told[event]

    def ends_within(self, timeout_s: float) -> bool:
        with self.news:
            return self.news.wait_for(lambda: "ended" in self.told, timeout_s)

    def send(self, number: signal.Signals) -> None:
        if self.status is None and self.pid:
            kill(self.pid, number)


class Place:
    """Topics of one test, its executors, and everything that was written to the log."""

    def __init__(self, bootstrap: str, names: TopicNames, partitions: int, folder: Path) -> None:
        self.names, self.partitions, self.bootstrap = names, partitions, bootstrap
        self.open_folder = Path(tempfile.mkdtemp(prefix="runfold-test-"))  # where tools of other users can write
        self.open_folder.chmod(0o711)
        self.effects_file = self.open_folder / "effects"
        self.effects_file.touch()
        self.effects_file.chmod(0o666)
        self.complaints = folder / f"stderr-{names.prefix}"
        self.children: list[Child] = []
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 5, "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
        })  # fmt: skip
        self.reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "auto.offset.reset": "earliest"})
        topics = {names.events: partitions, names.completions: partitions, names.quarantine: 1}
        self.reader.assign([TopicPartition(topic, n, 0) for topic, many in topics.items() for n in range(many)])
        self.records: list[Seen] = []
        self.headers = HeaderWriter("/test")
        with self.complaints.open("wb") as stderr:
            self.program = subprocess.Popen(
                [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        for line in self.program.stdout or ():
            said = json.loads(line)
            self.children[said["id"]].hear(said)

    def executor(self, name: str, **options: Any) -> Child:
        """Start one; it is on its way when this returns."""
        asked = {
            "id": len(self.children), "name": name, "bootstrap": self.bootstrap, "prefix": self.names.prefix,
            "partitions": self.partitions, "effects": str(self.effects_file), "session_ms": 6_000, "orphaned_ms": 600,
            **options,
        }  # fmt: skip
        child = Child(asked)
        self.children.append(child)
        stdin = self.program.stdin
        assert stdin is not None
        stdin.write(json.dumps(asked).encode() + b"\n")
        stdin.flush()
        child.wait("started")
        return child

    def append(self, key: str | None, value: bytes, headers: Any, partition: int = -1) -> None:
        self.producer.produce(self.names.events, value, key, partition, headers=headers)
        self.producer.poll(0)

    def request(self, run_id: str, agent: str = "short") -> None:
        self.fact(run_id, RunRequested(task_id=run_id, agent=agent, input="go"), f"{run_id}-asked")
        self.producer.flush(PATIENCE_S)

    def fact(self, run_id: str, event: Event, event_id: str) -> None:
        headers = self.headers.fact(type(event).__name__, event_id, int(time.time() * 1000))
        self.append(run_id, CODEC.encode(event), headers)

    def read(self, timeout_s: float = 0.05) -> None:
        for message in self.reader.consume(1_000, timeout_s):
            assert message.error() is None, message.error()
            self.records.append(
                Seen(
                    topic=str(message.topic()).removeprefix(f"{self.names.prefix}."),
                    partition=message.partition() or 0,
                    offset=message.offset() or 0,
                    key=(message.key() or b"").decode("utf-8", "replace"),
                    value=message.value() or b"",
                    headers={name: value or b"" for name, value in message.headers() or ()},
                )
            )

    def until(self, is_so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Read until it is so."""
        ends_at = time.monotonic() + patience_s
        while not is_so():
            assert time.monotonic() < ends_at, f"{what}: not within {patience_s:g} s\n{self.complaints.read_text()}"
            self.read()

    def reported(self) -> set[str]:
        return {each.key for each in self.records if each.topic == "run-events" and each.type == "TaskReported"}

    def run(self, run_id: str) -> list[Seen]:
        return [each for each in self.records if each.topic == "run-events" and each.key == run_id]

    def effects(self) -> list[tuple[str, str, str]]:
        """(run, call, dispatch) of every tool that ran."""
        lines = self.effects_file.read_text().splitlines()
        return [(run, call, dispatch) for run, call, dispatch in (line.split() for line in lines)]

    def close(self) -> None:
        for child in self.children:
            child.send(signal.SIGKILL)
        if self.program.stdin is not None:
            self.program.stdin.close()
        try:
            self.program.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.program.kill()
            self.program.wait()
        self.listener.join(PATIENCE_S)
        if self.program.stdout is not None:
            self.program.stdout.close()
        self.reader.close()
        shutil.rmtree(self.open_folder, ignore_errors=True)


@contextmanager
def place(bootstrap: str, prefix: str, folder: Path, partitions: int = 1) -> Iterator[Place]:
    names = ensure_topics(bootstrap, prefix, run_partitions=partitions, task_partitions=partitions)
    here = Place(bootstrap, names, partitions, folder)
    try:
        yield here
    finally:
        here.close()
        delete_topics(bootstrap, names)
