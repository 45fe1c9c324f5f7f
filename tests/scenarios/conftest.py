"""Two installations for all scenarios: one whose executor lives to the end, and one whose executors are killed."""

from collections.abc import Iterator

import pytest

from tests.scenarios.world import World, world


@pytest.fixture(scope="session")
def here(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Shared by all runs of the session: they have nothing to do with each other."""
    with world(kafka_bootstrap, tmp_path_factory.mktemp("here")) as made:
        made.executor()
        yield made


@pytest.fixture(scope="session")
def unsafe(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A place without an executor: each test starts its own, and may kill it."""
    with world(kafka_bootstrap, tmp_path_factory.mktemp("unsafe")) as made:
        yield made
