"""When runs are carried forward: by records, by bytes, by age; and never so often that the log more than doubles."""

from random import Random

import pytest

from runfold.events.types import MessageReceived
from runfold.executor.checkpoints import CARRIED_AT_ONCE
from runfold.executor.loop import Executor
from runfold.executor.mark import read_mark
from runfold.executor.settings import ExecutorSettings
from tests.unit.loops import Place, settle

NEVER = 1_000_000_000
KIB = 1024
CHUNK = 100 * KIB


def settings(*, records: int = NEVER, bytes: int = NEVER, age_ms: int = NEVER) -> ExecutorSettings:
    return ExecutorSettings(
        name="one",
        checkpoint_records=records,
        checkpoint_bytes=bytes,
        checkpoint_age_ms=age_ms,
        finished_memory_ms=0,
        early_fact_age_ms=NEVER,
    )


def noise(size: int, seed: int = 0) -> str:
    """Text that does not compress."""
    return Random(seed).randbytes(size // 2).hex()


def waiting(place: Place, executor: Executor, run: str, size: int = 100) -> None:
    """A run that waits for a message, with a state of about this size."""
    place.request(run, interactive=True, input=noise(size))
    settle(executor)
    assert place.types(run)[-1] == "PhaseEntered"


def passes(place: Place, executor: Executor, size: int, pieces: int = 1) -> None:
    """So many bytes of runs that come and go."""
    for piece in range(pieces):
        count = len(place.kafka.partitions[0].records)
        place.request(f"passing-{count}-{piece}", input=noise(size // pieces, count))
        settle(executor)
    executor.tidy()
    settle(executor)
    place.clock.now_ms += 1_500  # the mark is a second coarse
    place.request(f"passing-{len(place.kafka.partitions[0].records)}")
    settle(executor)
    executor.tidy()


def carried(place: Place, run: str = "run") -> int:
    return place.types(run).count("RunCheckpointed")


def distance(place: Place) -> int:
    """How many records a new owner would read, beside its own."""
    partition = place.kafka.partitions[0]
    mark, _ = read_mark(partition.committed, place.kafka.identity)
    assert mark is not None
    return partition.end - mark.offset


@pytest.mark.requirement("R36")
def test_a_run_that_waits_does_not_hold_the_mark_for_ever() -> None:
    """Large records are few: it is bytes that make a restore long. It goes on from its checkpoint."""
    place = Place()
    bounds = settings(bytes=4 * CHUNK)
    executor = place.executor(settings=bounds)
    settle(executor)
    waiting(place, executor, "run")
    passes(place, executor, 3 * CHUNK, 3)
    assert carried(place) == 0
    passes(place, executor, 3 * CHUNK, 3)
    assert carried(place) == 1
    assert distance(place) < 10
    executor = place.executor(settings=bounds)
    settle(executor)
    place.put("run", MessageReceived(command_id="m", text="and?"), "m")
    settle(executor)
    assert place.types("run").count("ModelReplied") == 2


def test_large_states_are_carried_less_often() -> None:
    """Four times what they weigh must be written first, whatever the bound says."""
    place = Place()
    executor = place.executor(settings=settings(bytes=KIB))
    settle(executor)
    waiting(place, executor, "run", CHUNK)
    passes(place, executor, 2 * CHUNK)
    assert carried(place) == 0
    passes(place, executor, 2 * CHUNK)
    assert carried(place) == 1
    passes(place, executor, 2 * CHUNK)
    assert carried(place) == 1
    passes(place, executor, 3 * CHUNK)
    assert carried(place) == 2


def test_a_new_owner_knows_how_much_its_states_weigh() -> None:
    """It would carry all of them again as soon as it came."""
    place = Place()
    bounds = settings(bytes=KIB)
    executor = place.executor(settings=bounds)
    settle(executor)
    waiting(place, executor, "run", CHUNK)
    passes(place, executor, 5 * CHUNK)
    assert carried(place) == 1
    executor = place.executor(settings=bounds)
    settle(executor)
    passes(place, executor, 2 * CHUNK)
    assert carried(place) == 1
    passes(place, executor, 3 * CHUNK)
    assert carried(place) == 2


def test_checkpoints_are_no_reason_for_checkpoints() -> None:
    """Many quiet runs: each carried once when others have written enough, and then there is quiet."""
    place = Place()
    executor = place.executor(settings=settings(records=5))
    settle(executor)
    runs = [f"run-{number}" for number in range(20)]
    for run in runs:
        waiting(place, executor, run)
    for _ in range(10):
        executor.tidy()
        settle(executor)
    before = [carried(place, run) for run in runs]
    assert max(before) <= 1
    for _ in range(10):
        executor.tidy()
        settle(executor)
    assert [carried(place, run) for run in runs] == before


@pytest.mark.parametrize("seed", range(10))
def test_the_log_at_most_doubles(seed: int) -> None:
    """Whatever the bounds, the sizes of states and what is written."""
    rng = Random(seed)
    place = Place()
    bounds = settings(records=rng.choice((5, 20, NEVER)), bytes=rng.choice((KIB, 50 * KIB, NEVER)))
    executor = place.executor(settings=bounds)
    settle(executor)
    for number in range(40):
        if rng.random() < 0.3:
            waiting(place, executor, f"run-{number}", rng.choice((100, 10 * KIB)))
        else:
            passes(place, executor, rng.choice((100, KIB, 40 * KIB)))
        if rng.random() < 0.1:
            executor = place.executor(settings=bounds)
            settle(executor)
    sizes = {True: 0, False: 0}
    for record in place.kafka.partitions[0].records:
        is_checkpoint = ("ce_type", b"runfold.RunCheckpointed") in (record.headers or [])
        sizes[is_checkpoint] += len(record.value or b"")
    assert sizes[True] <= sizes[False]


def test_a_run_is_carried_by_age_whatever_it_weighs() -> None:
    """Retention takes records by their age."""
    place = Place()
    executor = place.executor(settings=settings(age_ms=60_000))
    settle(executor)
    waiting(place, executor, "run", CHUNK)
    place.clock.now_ms += 61_000
    passes(place, executor, KIB)
    assert carried(place) == 1


def test_not_all_runs_are_carried_in_one_breath() -> None:
    """Packing a state takes time on the loop's thread: the oldest first, the others at the next tidying."""
    place = Place()
    executor = place.executor(settings=settings(age_ms=60_000))
    settle(executor)
    runs = [f"run-{number}" for number in range(CARRIED_AT_ONCE + 10)]
    for run in runs:
        place.request(run, interactive=True)
    settle(executor)
    place.clock.now_ms += 61_000
    place.request("later")
    settle(executor)  # and tidied once, since so much time has passed
    assert [carried(place, run) for run in runs] == [1] * CARRIED_AT_ONCE + [0] * 10
    executor.tidy()
    settle(executor)
    assert [carried(place, run) for run in runs] == [1] * len(runs)


def test_a_new_owner_makes_no_run_younger() -> None:
    """With a restart each day nothing would ever be carried, until retention had passed the run."""
    place = Place()
    bounds = settings(age_ms=60_000)
    executor = place.executor(settings=bounds)
    settle(executor)
    waiting(place, executor, "run")
    for _ in range(3):
        place.clock.now_ms += 25_000
        executor = place.executor(settings=bounds)
        settle(executor)
        executor.tidy()
        settle(executor)
    assert carried(place) == 1
    place.clock.now_ms += 25_000
    executor = place.executor(settings=bounds)
    settle(executor)
    executor.tidy()
    settle(executor)
    assert carried(place) == 1
