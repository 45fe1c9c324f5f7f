"""Many seeds on several processes; a failure is one line that repeats it."""

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tests.simulation import planted
from tests.simulation.checkers import Broken
from tests.simulation.world import Totals, World

CHUNK = 25
FAILURES_SHOWN = 5


@dataclass
class Outcome:
    totals: Totals = field(default_factory=Totals)
    failures: list[str] = field(default_factory=list)
    seeds: int = 0


def run_seed(seed: int) -> tuple[Totals, str]:
    """What the seed met, and the line that repeats its failure, if any."""
    world = World(seed)
    try:
        return world.run(), ""
    except (Exception, Broken) as error:  # noqa: BLE001  whatever goes wrong, the seed is what is needed
        return world.totals, f"scripts/simulate --seed {seed}  # {type(error).__name__}: {error}"


def run_chunk(seeds: Iterable[int]) -> Outcome:
    outcome = Outcome()
    for seed in seeds:
        totals, failure = run_seed(seed)
        outcome.totals.add(totals)
        outcome.seeds += 1
        if failure:
            outcome.failures.append(failure)
    return outcome


def run_seeds(seeds: range, *, processes: int = 2, progress: Callable[[int], None] = lambda _: None) -> Outcome:
    """All seeds, or as many as it takes to see a few failures."""
    whole = Outcome()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    if processes == 1:
        return run_chunk(seeds)
    with ProcessPoolExecutor(processes) as pool:
        for part in pool.map(run_chunk, chunks):
            whole.totals.add(part.totals)
            whole.failures += part.failures
            whole.seeds += part.seeds
            progress(whole.seeds)
            if len(whole.failures) >= FAILURES_SHOWN:
                pool.shutdown(cancel_futures=True)
                break
    return whole


def seeds_to_find(bug: str, seeds_max: int) -> tuple[int, str]:
    """How many seeds it takes to notice a planted bug, and how it was noticed; (-1, "") if none does."""
    with planted.BUGS[bug]():
        for seed in range(seeds_max):
            _, failure = run_seed(seed)
            if failure:
                return seed + 1, failure
    return -1, ""


def find_all(bugs: Iterable[str], seeds_max: int) -> dict[str, tuple[int, str]]:
    """Every planted bug by itself, in processes of their own."""
    names = list(bugs)
    with ProcessPoolExecutor(2) as pool:
        found = pool.map(partial(seeds_to_find, seeds_max=seeds_max), names)
        return dict(zip(names, found, strict=True))
