"""The partition of a key is the same for Python, for the Java client, and for librdkafka."""

import random
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from runfold.adapters.topics import delete_topics, ensure_topics
from runfold.dev.kafka_jars import jars, java
from runfold.events.partitioner import murmur2_partition

pytestmark = pytest.mark.kafka
PARTITIONS = 16
PROBE = """
import java.io.*;
import java.util.HexFormat;
import org.apache.kafka.common.utils.Utils;

public class Probe {
    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            byte[] key = HexFormat.of().parseHex(line);
            System.out.println(Utils.toPositive(Utils.murmur2(key)) % Integer.parseInt(args[0]));
        }
    }
}
"""


def keys(count: int) -> list[bytes]:
    """Empty, every remainder of four, high bytes, UTF-8, long."""
    chance = random.Random(7)
    found = [b"", b"a", b"ab", b"abc", b"abcd", b"\xff" * 7, "läuft-日本-🚀".encode(), b"x" * 10_000]
    while len(found) < count:
        found.append(chance.randbytes(chance.randrange(1, 70)))
    return found


def test_the_partition_is_that_of_the_java_client(tmp_path: Path) -> None:
    """Java producers must reach the partition that we compute."""
    (tmp_path / "Probe.java").write_text(PROBE, encoding="utf-8")
    asked = keys(3000)
    lines = "".join(f"{key.hex()}\n" for key in asked)
    command = [java(), "-cp", f"{jars()}/*", str(tmp_path / "Probe.java"), str(PARTITIONS)]
    said = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True).stdout.split()
    assert [murmur2_partition(key, PARTITIONS) for key in asked] == [int(word) for word in said]


def test_the_partition_is_that_of_librdkafka(kafka_bootstrap: str, topic_prefix: str) -> None:
    """Where our own producer's partitioner puts a key, a reader that computes it must look."""
    names = ensure_topics(kafka_bootstrap, topic_prefix, run_partitions=PARTITIONS, task_partitions=1)
    landed: dict[bytes, int | None] = {}

    def delivered(error: object, message: Message) -> None:
        assert error is None
        landed[message.key() or b""] = message.partition()

    try:
        producer = Producer({"bootstrap.servers": kafka_bootstrap, "partitioner": "murmur2_random"})
        for key in keys(500):
            producer.produce(names.events, b"", key, on_delivery=delivered)
        assert producer.flush(30) == 0
        assert landed == {key: murmur2_partition(key, PARTITIONS) for key in keys(500)}
    finally:
        delete_topics(kafka_bootstrap, names)
