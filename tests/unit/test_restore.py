"""Rebuilding runs from the middle of a partition: the rules of design section 5."""

from dataclasses import replace

import pytest

from runfold.core.checkpoint import packed
from runfold.core.restore import Restored, Restoring
from runfold.core.state import Halt, RunState
from runfold.events.envelope import Record
from runfold.events.types import (
    CancelRequested,
    MessageReceived,
    PhaseEntered,
    RunCheckpointed,
    RunParked,
    RunRequested,
    TaskReported,
    UnparkRequested,
)
from tests.builders import Story, call, calling, content, dispatched, finished, names, reported, waiting

requirement = pytest.mark.requirement


def restored(records: list[Record], mark: int = 0, restoring: Restoring | None = None) -> dict[str, Restored]:
    """What a new owner makes of the records from the mark on."""
    restoring = restoring or Restoring(mark=mark)
    for record in records:
        if record.offset >= mark:
            restoring.take(record)
    failures: list[str] = []
    found = dict(restoring.runs(lambda _: None, lambda run_id, why: failures.append(f"{run_id}: {why}")))
    assert not failures, failures
    return found


def same(found: RunState, story: Story) -> bool:
    return found.last == story.state.last and content(found) == content(story.state)


def checkpointed(story: Story, *, parts: int = 1, kept: int | None = None) -> int:
    """Carry the story's state forward, in so many parts, of which so many landed; answers the as-of offset."""
    payload, as_of = packed(story.state), len(story.records)
    size = -(-len(payload) // parts)
    for number in range(parts if kept is None else kept):
        piece = payload[number * size : (number + 1) * size]
        story.add(RunCheckpointed(part=number + 1, parts=parts, as_of_offset=as_of, state=piece))
    return as_of


# ---- from the beginning


def test_a_run_is_folded_from_its_request() -> None:
    """Everything since the mark, and the mark lies before the run."""
    story = dispatched(call("read"))
    found = restored(story.records)["run"]
    assert same(found.state, story)
    assert found.base_offset == 0
    assert not found.is_carried


def test_early_facts_are_kept_as_a_run_without_a_base() -> None:
    """A cancel whose request is still to come is not forgotten by a change of owner."""
    story = Story()
    story.is_cancelled()
    found = restored(story.records)["run"]
    assert found.state.cancel is not None
    assert not found.state.last


def test_a_run_that_is_over_falls_out_while_reading() -> None:
    """Its id is remembered, so that a repeated request starts nothing."""
    restoring = Restoring(mark=0)
    story = reported()
    story.add(RunRequested(task_id="run", agent="agent"))
    assert restored(story.records, restoring=restoring) == {}
    assert set(restoring.finished) == {"run"}
    assert restoring.finished["run"].repeated_at == len(story.records) - 1


@requirement("R33")
def test_the_end_of_a_run_that_began_before_the_mark_is_recognised() -> None:
    """A repeated request in front of its TaskReported looks like a beginning, and is none."""
    story = reported()
    end = story.records[-1].offset
    repeated = story.record(RunRequested(task_id="run", agent="agent"))
    tail = [replace(repeated, offset=end), replace(story.records[-1], offset=end + 1)]
    restoring = Restoring(mark=end)
    assert restored(tail, end, restoring) == {}
    assert set(restoring.finished) == {"run"}


def test_what_is_left_of_a_finished_run_is_no_run() -> None:
    """Facts without a base that cannot be early ones belong to something that is over."""
    story = dispatched(call("read"))
    story.reports(0)
    mark = len(story.records) - 1
    restoring = Restoring(mark=mark)
    assert restored(story.records, mark, restoring) == {}
    assert restoring.without_base() == []


def test_decisions_without_a_beginning_and_an_end_are_a_loss() -> None:
    """The operator is asked; the run is not made up."""
    story = dispatched(call("read"))
    restoring = Restoring(mark=3)
    assert restored(story.records, 3, restoring) == {}
    assert restoring.without_base() == ["run"]


# ---- from a checkpoint


@requirement("R36")
@pytest.mark.parametrize("parts", [1, 3])
def test_a_run_is_carried_by_its_checkpoint(parts: int) -> None:
    """Read from the as-of offset on; what came after it is folded on top."""
    story = dispatched(call("read"), call("read"))
    as_of = checkpointed(story, parts=parts)
    story.reports(0)
    story.reports(1)
    story.goes_on()
    found = restored(story.records, as_of)["run"]
    assert same(found.state, story)
    assert found.is_carried
    assert found.base_offset == as_of


def test_facts_between_the_as_of_offset_and_the_checkpoint_are_folded_on_top() -> None:
    """They landed while the checkpoint was on its way, and are not in it."""
    story = calling()
    payload, as_of = packed(story.state), len(story.records)
    story.hears("m1")
    story.add(RunCheckpointed(part=1, parts=1, as_of_offset=as_of, state=payload))
    found = restored(story.records, as_of)["run"]
    assert same(found.state, story)
    assert [message.command_id for message in found.state.mailbox] == ["m1"]


def test_a_checkpoint_from_before_the_mark_is_not_adopted() -> None:
    """Records that belong on top of it were not read."""
    story = calling()
    payload, as_of = packed(story.state), len(story.records)
    story.hears("m1")
    story.add(RunCheckpointed(part=1, parts=1, as_of_offset=as_of, state=payload))
    assert restored(story.records, as_of + 1) == {}


def test_an_incomplete_checkpoint_is_no_base() -> None:
    """It counts only whole."""
    story = calling()
    as_of = checkpointed(story, parts=3, kept=2)
    assert restored(story.records, as_of) == {}
    assert same(restored(story.records)["run"].state, story)


def test_an_incomplete_checkpoint_does_not_hide_a_whole_one() -> None:
    """The newest whole one carries the run; the beginning of another changes nothing."""
    story = waiting()
    as_of = checkpointed(story)
    story.hears("m1")
    checkpointed(story, parts=2, kept=1)
    found = restored(story.records, as_of)["run"]
    assert found.base_offset == as_of
    assert same(found.state, story)


def test_the_newest_checkpoint_is_adopted() -> None:
    """Restoring is bounded by the distance to the last one."""
    story = waiting()
    first = checkpointed(story)
    story.hears("m1")
    second = checkpointed(story)
    found = restored(story.records, first)["run"]
    assert found.base_offset == second
    assert same(found.state, story)


def test_the_checkpoint_of_the_loser_of_two_owners_is_not_adopted() -> None:
    """A decision before it follows the same one: the winner's, which the loser did not know."""
    story = dispatched(call("read"))
    story.reports(0)
    base, payload, as_of = story.state.last, packed(story.state), len(story.records)
    story.goes_on()
    story.add(RunCheckpointed(part=1, parts=1, as_of_offset=as_of, state=payload), follows=base)
    assert restored(story.records, as_of) == {}
    assert same(restored(story.records)["run"].state, story)


def test_a_decision_that_follows_the_same_one_later_is_void_and_no_rival() -> None:
    """The checkpoint came first, so it stands."""
    story = calling()
    base = story.state.last
    as_of = checkpointed(story)
    story.add(PhaseEntered(phase="awaiting_tools", turn=1), follows=base)
    found = restored(story.records, as_of)["run"]
    assert same(found.state, story)


@requirement("R33")
def test_a_checkpoint_overrides_a_state_begun_by_a_repeated_request() -> None:
    """In mid-log a repeated request looks like a beginning; the checkpoint knows better."""
    story = dispatched(call("read"))
    mark = len(story.records)
    story.add(RunRequested(task_id="run", agent="agent", input="again"))
    as_of = checkpointed(story)
    story.reports(0)
    found = restored(story.records, mark)["run"]
    assert found.is_carried
    assert found.base_offset == as_of
    assert same(found.state, story)


def test_a_broken_checkpoint_sets_its_run_aside_and_no_other() -> None:
    """One bad run must not stop its partition."""
    bad, good = calling(), calling()
    as_of = len(bad.records)
    bad.add(RunCheckpointed(part=1, parts=1, as_of_offset=as_of, state=b"junk"))
    restoring = Restoring(mark=0)
    for record in [*bad.records, *(replace(record, run_id="good") for record in good.records)]:
        restoring.take(record)
    aside: list[str] = []
    found = dict(restoring.runs(lambda _: None, lambda run_id, why: aside.append(run_id)))
    assert set(found) == {"good"}
    assert aside == ["run"]


# ---- set aside


def unreadable(story: Story) -> int:
    """A decision that this version cannot fold, and its run is parked; answers its offset."""
    record = story.record(PhaseEntered(phase="teleporting", turn=1), phase="teleporting")
    record.type, record.body = "RunTeleported", None
    story.take(record)
    assert names(story.goes_on()) == ["RunParked"]
    return record.offset


def test_a_parked_run_stays_parked_over_a_restart() -> None:
    """The reason and the base are in the log."""
    story = calling()
    bad = unreadable(story)
    found = restored(story.records)["run"].state
    assert isinstance(found.parked, RunParked)
    assert found.parked.bad_offset == bad


def test_a_record_is_skipped_once_the_operator_has_said_so() -> None:
    """Its place in the chain counts, its content does not; the run goes on."""
    story = calling()
    bad = unreadable(story)
    story.add(UnparkRequested(command_id="u1", mode="skip"))
    story.state = restored(story.records)["run"].state
    assert story.state.halt is None
    assert story.state.skipped == (bad,)
    events = story.goes_on()
    assert names(events)[0] == "RunUnparked"
    assert story.state.parked is None


def test_after_the_unparking_every_reader_skips_the_same_record() -> None:
    """RunUnparked names it: the state is the same for all who read the log."""
    story = calling()
    bad = unreadable(story)
    story.add(UnparkRequested(command_id="u1", mode="skip"))
    story.state = restored(story.records)["run"].state
    story.goes_on()
    found = restored(story.records)["run"].state
    assert found.halt is None
    assert found.parked is None
    assert found.last == story.state.last
    assert found.phase == story.state.phase
    assert bad == story.state.skipped[0]


def test_a_record_that_came_after_the_operator_spoke_is_not_skipped() -> None:
    """Nobody chose to leave it out."""
    story = calling()
    story.add(RunParked(reason="x", base_offset=0), phase="calling_model")
    story.add(UnparkRequested(command_id="u1", mode="skip"))
    record = story.record(PhaseEntered(phase="teleporting", turn=1))
    record.type, record.body = "RunTeleported", None
    story.take(record)
    found = restored(story.records)["run"].state
    assert found.halt is not None
    assert found.halt.offset == record.offset


def test_a_parked_run_whose_base_lies_before_the_mark_is_not_made_up() -> None:
    """It has left the mark on purpose; unparking it reads from its base again."""
    story = calling()
    unreadable(story)
    mark = len(story.records)
    story.add(RunRequested(task_id="run", agent="agent"))
    story.add(RunParked(reason="x", base_offset=0))
    restoring = Restoring(mark=mark)
    assert restored(story.records, mark, restoring) == {}
    assert not restoring.wants_whole_log()
    story.add(UnparkRequested(command_id="u1", mode="retry"))
    restoring = Restoring(mark=mark)
    assert restored(story.records, mark, restoring) == {}
    assert restoring.wants_whole_log()


def test_runs_of_one_partition_do_not_disturb_each_other() -> None:
    """Records are kept run by run, whatever their order in the partition."""
    one, other = dispatched(call("read")), waiting()
    mixed: list[Record] = []
    for index in range(max(len(one.records), len(other.records))):
        mixed += [replace(record, run_id="one") for record in one.records[index : index + 1]]
        mixed += [replace(record, run_id="other") for record in other.records[index : index + 1]]
    found = restored(mixed)
    assert found["one"].state.phase == one.state.phase
    assert found["other"].state.phase == other.state.phase


def test_an_early_fact_that_cannot_be_read_does_not_forget_the_others() -> None:
    """Somebody's garbage must not make a cancel be forgotten."""
    story = Story()
    story.add(CancelRequested(command_id="c"))
    garbage = story.record(MessageReceived(command_id="m"))
    garbage.body = None
    story.take(garbage)
    assert restored(story.records)["run"].state.cancel is not None


def test_a_report_that_is_void_by_a_checkpoint_does_not_end_the_run() -> None:
    """Two owners: one carried the run forward, the other reported it on top of the same decision. The first counts."""
    story = finished()
    last = story.state.last
    as_of = checkpointed(story)
    story.add(TaskReported(completion="c1"), follows=last)
    found = restored(story.records[as_of:], mark=as_of)["run"]
    assert found.is_carried
    assert not found.state.reported


def test_what_cannot_be_skipped_is_not_tried_for_ever() -> None:
    """A checkpoint that carries the halt itself, by a faulty version: the run stays set aside, the restore ends."""
    story = calling()
    story.state.halt = Halt(offset=2, reason="unknown")
    as_of = checkpointed(story)
    story.add(RunParked(reason="unknown", base_offset=0, bad_offset=2))
    story.add(UnparkRequested(command_id="u", mode="skip"))
    found = restored(story.records[as_of:], mark=as_of)["run"]
    assert found.state.halt is not None
