"""Parked runs: they leave the low-water mark, and are nevertheless known to every owner after that."""

import pytest

from runfold.events.types import CancelRequested, UnparkRequested
from runfold.executor.loop import Executor
from runfold.executor.mark import METADATA_BYTES_MAX
from tests.unit.loops import PEOPLE, Place, settle

LATER_MS = 120_000  # more than the memory of finished runs: the mark has left what is parked


def park(place: Place, executor: Executor, run: str) -> None:
    """Somebody's future version has decided something about this run."""
    state = executor.ownership.partitions[0].runs[run].state
    headers = PEOPLE.decision(
        "FromTheFuture", f"{run}-unknown", 0, follows=state.last, revision=state.revision + 1, phase="phase"
    )
    place.kafka.produce(run, b"\xc3\x01" + b"\x07" * 8, headers, partition=0)
    settle(executor)
    assert place.types(run)[-1] == "RunParked"


def pass_by(place: Place, executor: Executor, *runs: str) -> None:
    """So much later that the mark has left everything that is parked or over."""
    for run in runs:
        place.clock.now_ms += LATER_MS
        place.request(run)
        settle(executor)
        executor.tidy()


def parked_long_ago(place: Place, *runs: str) -> Executor:
    """These runs are parked, the mark has left them, and a new owner has come."""
    executor = place.executor()
    settle(executor)
    for run in runs:
        place.request(run, interactive=True)
        settle(executor)
        park(place, executor, run)
    pass_by(place, executor, "later", "much-later")
    executor = place.executor()
    settle(executor)
    assert not set(runs) & set(executor.ownership.partitions[0].runs)
    return executor


def begun(place: Place, run: str) -> int:
    return place.types(run).count("ContextLoaded")


@pytest.mark.requirement("R33")
def test_a_repeated_request_does_not_start_a_parked_run_again() -> None:
    """It is not in memory, and it is not over either: its operator decides what becomes of it."""
    place = Place()
    executor = parked_long_ago(place, "run")
    place.request("run", "asked-again", interactive=True)
    settle(executor)
    assert begun(place, "run") == 1


@pytest.mark.requirement("R33")
def test_a_repeated_request_that_a_new_owner_finds_does_not_start_it_either() -> None:
    """In the middle of the log it looks like a beginning."""
    place = Place()
    parked_long_ago(place, "run")
    place.request("run", "asked-again", interactive=True)
    executor = place.executor()
    settle(executor)
    place.request("run", "and-again", interactive=True)
    settle(executor)
    assert begun(place, "run") == 1


def test_a_parked_run_stays_known_over_many_owners() -> None:
    """Each commits what the one before it knew."""
    place = Place()
    executor = parked_long_ago(place, "run", "other")
    for number in range(3):
        pass_by(place, executor, f"next-{number}", f"after-{number}")
        executor = place.executor()
        settle(executor)
    for run in ("run", "other"):
        place.request(run, f"{run}-again", interactive=True)
    settle(executor)
    assert (begun(place, "run"), begun(place, "other")) == (1, 1)


def test_a_cancel_is_no_beginning_of_a_parked_run() -> None:
    """Kept as an early fact it would be a run without a base, to which a repeated request gives one."""
    place = Place()
    executor = parked_long_ago(place, "run")
    place.put("run", CancelRequested(command_id="c"), "cancel")
    settle(executor)
    place.request("run", "asked-again", interactive=True)
    settle(executor)
    executor = place.executor()
    settle(executor)
    assert begun(place, "run") == 1


@pytest.mark.requirement("R33")
def test_a_parked_run_is_taken_up_where_it_was_and_not_from_the_repeated_request() -> None:
    """What was said meanwhile counts: the cancel, too."""
    place = Place()
    executor = parked_long_ago(place, "run")
    place.request("run", "asked-again", interactive=True)
    place.put("run", UnparkRequested(command_id="u", mode="skip"), "unpark")
    settle(executor)
    assert place.types("run")[-1] == "RunUnparked"
    place.put("run", CancelRequested(command_id="c"), "cancel")
    settle(executor)
    assert begun(place, "run") == 1
    assert "run" in place.completed
    pass_by(place, executor, "later-1", "later-2")
    executor = place.executor()
    settle(executor)
    assert executor.ownership.partitions[0].away == set()


def test_an_unparking_that_a_new_owner_finds_is_heard() -> None:
    """Beside a repeated request, which looks like a beginning."""
    place = Place()
    parked_long_ago(place, "run")
    place.request("run", "asked-again", interactive=True)
    place.put("run", UnparkRequested(command_id="u", mode="skip"), "unpark")
    settle(place.executor())
    assert begun(place, "run") == 1
    assert place.types("run")[-1] == "RunUnparked"


def test_more_parked_runs_than_a_commit_can_name_cost_a_read_from_the_start() -> None:
    """The metadata string is bounded; what does not fit is left out, and the next owner says so."""
    place = Place()
    runs = [f"run-{number}" for number in range(METADATA_BYTES_MAX // 16)]
    executor = place.executor()
    settle(executor)
    for run in runs:
        place.request(run, interactive=True)
    settle(executor)
    for run in runs:
        park(place, executor, run)
    pass_by(place, executor, "later", "much-later")
    assert place.kafka.partitions[0].committed.metadata == ""
    executor = place.executor()
    settle(executor)
    assert "from its start" in place.told[-1]
    place.request("run-7", "asked-again", interactive=True)
    settle(executor)
    assert begun(place, "run-7") == 1
