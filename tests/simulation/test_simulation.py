"""The executor's promises under every misfortune the simulation knows, from many seeds."""

import os

from tests.simulation.runner import Outcome, run_seed, run_seeds
from tests.simulation.world import World

SEEDS = int(os.environ.get("RUNFOLD_SIMULATION_SEEDS", "2000"))


def _met_everything(outcome: Outcome) -> None:
    missing = [name for name, value in vars(outcome.totals).items() if not value]
    assert not missing, f"the simulation never met: {', '.join(missing)}"


def test_every_run_survives_every_misfortune() -> None:
    """No law breaks on the way, every run ends once the misfortune does, and every kind of it was met."""
    outcome = run_seeds(range(SEEDS))
    assert not outcome.failures, "\n".join(outcome.failures)
    assert outcome.seeds == SEEDS
    _met_everything(outcome)


def test_a_seed_repeats_its_history() -> None:
    """The same seed gives the same log, record by record: a failure can be repeated."""
    histories = []
    for _ in range(2):
        world = World(7)
        world.run()
        histories.append([[(d.key, d.value, d.headers, d.time_ms) for d in p.records] for p in world.kafka.partitions])
    assert histories[0] == histories[1]


def test_a_failure_is_one_line_that_repeats_it() -> None:
    """Whoever sees a failure can copy a command."""
    world = World(3)
    assert world.seed == 3
    assert run_seed(3)[1] == ""
