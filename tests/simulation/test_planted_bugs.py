"""A simulation is worth what it finds: every planted bug is found, within few seeds."""

import pytest

from tests.simulation import planted
from tests.simulation.runner import find_all

SEEDS_MAX = 2_000


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[int, str]]:
    return find_all(planted.BUGS, SEEDS_MAX)


@pytest.mark.parametrize("bug", sorted(planted.BUGS))
def test_the_simulation_finds(bug: str, found: dict[str, tuple[int, str]]) -> None:
    """The looser rule breaks a law within the seeds that every change is tested with."""
    seeds, how = found[bug]
    assert seeds > 0, f"{bug} was not noticed in {SEEDS_MAX} seeds"
    assert "Broken" in how, how
