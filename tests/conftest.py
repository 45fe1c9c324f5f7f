"""What every test may ask for: a real Kafka, and topic names of its own on it."""

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest

from runfold.dev.embedded_kafka import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """One broker for the whole session, started when the first test asks; or yours, by KAFKA_BOOTSTRAP_SERVERS."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    with EmbeddedKafka() as kafka:
        yield kafka.bootstrap_servers


@pytest.fixture
def topic_prefix() -> str:
    """Nobody else's topics: tests must not see each other's records."""
    return f"test-{uuid4().hex[:12]}"
