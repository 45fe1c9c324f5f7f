"""The examples, run as their readers would: Kafka, Avro and the published schemas, nothing of ours."""

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics
from runfold.dev.stack import Stack
from runfold.events.codec import Codec
from runfold.events.types import RunRequested, TaskCompleted, Totals

pytestmark = pytest.mark.kafka
EXAMPLES = Path(__file__).parents[2] / "examples"
PARTITIONS = 2
PATIENCE_S = 40.0


@pytest.fixture
def names(kafka_bootstrap: str, topic_prefix: str) -> Iterator[TopicNames]:
    made = ensure_topics(kafka_bootstrap, topic_prefix, run_partitions=PARTITIONS, task_partitions=PARTITIONS)
    yield made
    delete_topics(kafka_bootstrap, made)


def example(name: str, *arguments: str, bootstrap: str, prefix: str) -> str:
    """What it printed. Isolated from this tree: only installed libraries can be imported."""
    environment = {
        "PATH": os.environ["PATH"],
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "RUNFOLD_TOPIC_PREFIX": prefix,
    }
    command = [sys.executable, "-I", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_needs_nothing_of_ours(path: Path) -> None:
    """Whoever copies it has all of it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"fastavro", "confluent_kafka"}


@pytest.mark.requirement("R32")
def test_a_submitted_task_becomes_a_run(kafka_bootstrap: str, names: TopicNames, tmp_path: Path) -> None:
    """The intake as a process, the example as another; the same id twice is one run."""
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap,
        "RUNFOLD_TOPIC_PREFIX": names.prefix,
        "RUNFOLD_RUN_PARTITIONS": str(PARTITIONS),
        "RUNFOLD_BLOBS": str(tmp_path),
        "PYTHONPATH": str(EXAMPLES.parent / "services"),
    }
    read: list[tuple[bytes | None, bytes | None]] = []
    reader = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": "-", "auto.offset.reset": "earliest"})
    reader.assign([TopicPartition(names.events, number, 0) for number in range(PARTITIONS)])
    with Stack(environment) as stack:
        stack.start("intake")
        for task_id in ("mine", "mine", "last"):
            arguments = ("clerk", "Zähle bis vier", task_id)
            printed = example("submit.py", *arguments, bootstrap=kafka_bootstrap, prefix=names.prefix)
            assert printed == f"{task_id}\n"
        ends_at = time.monotonic() + PATIENCE_S
        while not any(key == b"last" for key, _ in read):
            assert time.monotonic() < ends_at
            read += [(m.key(), m.value()) for m in reader.consume(10, 0.1) if m.error() is None]
    reader.close()
    assert sorted(key or b"" for key, _ in read) == [b"last", b"mine"]
    for _, value in read:
        event = Codec().decode(value or b"")
        assert isinstance(event, RunRequested)
        assert (event.agent, event.input, event.problem) == ("clerk", "Zähle bis vier", None)


@pytest.mark.requirement("R32")
def test_completions_are_printed(kafka_bootstrap: str, names: TopicNames) -> None:
    """As the executor writes them; a deleted one is passed over."""
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "partitioner": "murmur2_random"})
    completions = [
        TaskCompleted(task_id="a", status="completed", result="vier ✓", totals=Totals(turns=2), labels={"team": "x"}),
        TaskCompleted(task_id="b", status="failed", kind="model", reason="gone", totals=Totals()),
    ]
    producer.produce(names.completions, None, "deleted")
    for completion in completions:
        producer.produce(names.completions, Codec().encode(completion), completion.task_id)
    producer.flush(PATIENCE_S)
    printed = example("print_completions.py", "2", bootstrap=kafka_bootstrap, prefix=names.prefix)
    lines = sorted((json.loads(line) for line in printed.splitlines()), key=lambda line: str(line["task_id"]))
    assert [(line["task_id"], line["status"], line["result"]) for line in lines] == [
        ("a", "completed", "vier ✓"),
        ("b", "failed", None),
    ]
    assert (lines[0]["totals"]["turns"], lines[0]["labels"]) == (2, {"team": "x"})
