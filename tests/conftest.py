"""What every test may ask for: a real Kafka, and topic names of its own on it. And how to run one requirement's tests."""

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest

from runfold.dev.embedded_kafka import EmbeddedKafka


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirement", action="append", default=[], metavar="R12", help="only tests that prove it; may be repeated"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [(number,) for number in config.getoption("--requirement")]
    if wanted:
        proves = {item: any(mark.args in wanted for mark in item.iter_markers("requirement")) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not proves[item]])
        items[:] = [item for item in items if proves[item]]


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
