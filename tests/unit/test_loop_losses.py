"""A partition whose runs lost their beginning: it waits for an operator's word, and for nothing else."""

import pytest

from runfold.events.types import RunLost
from runfold.executor.loop import Executor
from tests.unit.loops import CODEC, Place, settle

LOST = RunLost(reason="an operator accepted the loss")


def lose(place: Place, *runs: str) -> Executor:
    """These runs wait for messages; then the log loses their beginning, and a new owner comes."""
    executor = place.executor()
    settle(executor)
    for run in runs:
        place.request(run, interactive=True)
        settle(executor)
    executor.tidy()
    place.kafka.truncate(0, next(r.offset for r in place.kafka.partitions[0].records if r.key == runs[-1].encode()) + 2)
    executor = place.executor()
    settle(executor)
    return executor


def is_live(executor: Executor) -> bool:
    return executor.ownership.partitions[0].restoring is None


def test_a_partition_that_lost_runs_is_not_started() -> None:
    """Somebody is told which one, and what can be done; its runs are not made up, and new ones wait."""
    place = Place()
    executor = lose(place, "run")
    place.request("next")
    settle(executor)
    assert not is_live(executor)
    assert place.completed == set()
    assert "doctor --accept-loss" in place.told[-1]


@pytest.mark.requirement("R9")
def test_an_accepted_loss_starts_the_partition_without_a_restart() -> None:
    """The run ends as failed, with the operator's reason; what was asked for meanwhile goes on."""
    place = Place()
    executor = lose(place, "run")
    place.request("next")
    place.put("run", LOST, "lost")
    settle(executor)
    assert is_live(executor)
    assert place.completed == {"run", "next"}
    completed = CODEC.decode(place.kafka.completions["run"][0])
    assert (completed.status, completed.kind, completed.reason) == ("failed", "lost", LOST.reason)


def test_the_partition_waits_for_the_last_of_its_lost_runs() -> None:
    """Those whose loss nobody has accepted are not given up beside the others."""
    place = Place()
    executor = lose(place, "one", "two", "three")
    place.put("one", LOST, "lost-1")
    settle(executor)
    place.put("two", LOST, "lost-2")
    settle(executor)
    assert (is_live(executor), place.completed) == (False, set())
    place.put("three", LOST, "lost-3")
    settle(executor)
    assert (is_live(executor), place.completed) == (True, {"one", "two", "three"})


def test_many_losses_are_one_look_at_the_partition() -> None:
    """A thousand runs lost at once do not make a thousand restores."""
    place = Place()
    runs = [f"run-{number}" for number in range(20)]
    executor = lose(place, *runs)
    looks = place.types().count("PartitionOpened")
    for run in runs:
        place.put(run, LOST, f"lost-{run}")
    settle(executor)
    assert place.completed == set(runs)
    assert place.types().count("PartitionOpened") == looks + 1


def test_a_loss_that_was_accepted_before_the_owner_came_needs_no_second_word() -> None:
    """The doctor may run while no executor does."""
    place = Place()
    lose(place, "run")
    place.put("run", LOST, "lost")
    settle(place.executor())
    assert place.completed == {"run"}


def test_a_log_that_loses_its_beginning_while_it_is_read_is_a_loss_too() -> None:
    """Retention may pass a reader that is slow: then its runs are not forgotten in silence."""
    place = Place()
    executor = place.executor()
    settle(executor)
    place.request("run", interactive=True)
    settle(executor)
    executor.tidy()
    executor = place.executor()
    assert place.log is not None
    place.log.batch_max = 1
    executor.step(0)
    executor.step(0)
    place.kafka.truncate(0, len(place.types("run")))
    settle(executor)
    assert not is_live(executor)
    place.put("run", LOST, "lost")
    settle(executor)
    assert (is_live(executor), place.completed) == (True, {"run"})
