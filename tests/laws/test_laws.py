"""Laws that hold for any history of a run, tried on a few hundred random ones. A failure names its seed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from runfold.core.checkpoint import packed, unpacked
from runfold.core.fold import EFFECTIVE, VOID, fold, take
from runfold.core.pending import completion_of, is_call_wanted, pending_tools
from runfold.core.restore import rebuilt
from runfold.core.state import RunState, copied
from runfold.core.transcript import Results, check_order
from runfold.events.envelope import Record
from runfold.events.types import DECISIONS, FACTS, ModelFailed, ModelReplied, RunCheckpointed, ToolReported
from tests.builders import Story, content, names
from tests.laws.histories import RandomStory, random_story

requirement = pytest.mark.requirement
SEEDS = 200
CHUNK = 40
CHUNKS = [range(start, start + CHUNK) for start in range(0, SEEDS, CHUNK)]
by_seeds = pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")


def stories(seeds: range) -> Iterator[RandomStory]:
    for seed in seeds:
        yield random_story(seed)


def empty() -> RunState:
    return RunState(run_id="run")


def cuts(story: RandomStory, wanted: int = 6) -> list[int]:
    """A few places in a history."""
    return sorted(story.rng.sample(range(len(story.records) + 1), min(wanted, len(story.records))))


def resumed(story: RandomStory, cut: int) -> Story:
    """Somebody who has only the first so many records of the log."""
    other = Story()
    other.records = story.records[:cut]
    other.state = fold(other.records, empty())
    other.now_ms = other.records[-1].time_ms if other.records else story.now_ms
    return other


@by_seeds
def test_a_history_may_be_folded_in_pieces(seeds: range) -> None:
    """fold(a + b) = fold(b, fold(a)), wherever it is cut, by copies that do not disturb each other."""
    for story in stories(seeds):
        whole = fold(story.records, empty())
        assert whole.last == story.state.last, story.seed
        assert content(whole) == content(story.state), story.seed
        for cut in cuts(story):
            first = fold(story.records[:cut], empty())
            second = fold(story.records[cut:], copied(first))
            assert second == whole, (story.seed, cut)
            assert first == fold(story.records[:cut], empty()), (story.seed, cut)


@by_seeds
def test_a_checkpoint_and_the_tail_are_the_whole(seeds: range) -> None:
    """fold(checkpoint + tail) = fold(all)."""
    for story in stories(seeds):
        whole = fold(story.records, empty())
        for cut in cuts(story, 2):
            carried = unpacked(packed(fold(story.records[:cut], empty())))
            assert fold(story.records[cut:], carried) == whole, (story.seed, cut)


@requirement("R36")
@by_seeds
def test_a_reader_in_mid_log_finds_the_same_state(seeds: range) -> None:
    """With a checkpoint in the log, reading from its as-of offset on gives what reading everything gives."""
    for story in stories(seeds):
        cut = len(story.records)
        if not story.state.last or story.state.reported or story.state.halt is not None:
            continue
        story.add(RunCheckpointed(part=1, parts=1, as_of_offset=cut, state=packed(story.state)), phase="")
        for _ in range(8):
            story.go()
        whole = fold(story.records, empty())
        found = rebuilt("run", story.records[cut:], cut)
        assert found.is_carried, story.seed
        assert found.base_offset == cut
        assert content(found.state) == content(whole), story.seed
        assert found.state.last == whole.last, story.seed


@requirement("R2")
@requirement("R36")
@by_seeds
def test_any_prefix_can_be_gone_on_from(seeds: range) -> None:
    """Whoever has only the log decides steps that are effective, comes to rest, and decides nothing twice."""
    for story in stories(seeds):
        for cut in cuts(story, 4):
            other = resumed(story, cut).changes_owner()
            other.goes_on()  # checks that each step is effective
            assert other.decided().steps == [], (story.seed, cut)
            assert other.goes_on() == []


@requirement("R9")
@by_seeds
def test_every_run_comes_to_its_end(seeds: range) -> None:
    """Each wait has a producer or a time: with time alone, nobody answering, a run is reported within its limits."""
    for story in stories(seeds):
        story.changes_owner()
        story.completion = ""
        for _ in range(200):
            story.goes_on()
            if story.state.finished is not None:
                break
            wake_ms = story.decided().wake_at_ms
            assert wake_ms is not None, f"seed {story.seed}: stuck in {story.state.phase}"
            assert wake_ms > story.now_ms, f"seed {story.seed}: woken for nothing in {story.state.phase}"
            story.now_ms = wake_ms
        story.completion = "c1"
        story.goes_on()
        assert story.state.reported, f"seed {story.seed}: {story.state.phase}"


@by_seeds
def test_a_chain_that_broke_off_leads_to_the_same_decisions(seeds: range) -> None:
    """Whichever prefix of it survived, what is decided in the end is the same (ids aside)."""
    for story in stories(seeds):
        steps = story.decided().steps
        whole = copy_of(story)
        whole.steps_once()
        for kept in range(1, len(steps)):
            part = copy_of(story)
            for step in steps[:kept]:
                record = part.record(step.event, phase=step.phase)
                part.ours.add(record.event_id)
                assert part.take(record) is EFFECTIVE
            part.steps_once()
            assert settled_and_started(part) == settled_and_started(whole), (story.seed, kept)


def copy_of(story: RandomStory) -> Story:
    other = resumed(story, len(story.records))
    other.now_ms, other.assigned_at_ms, other.completion = story.now_ms, story.assigned_at_ms, story.completion
    other.ours = set(story.ours)
    other.workspace_is_here = story.workspace_is_here
    return other


def settled_and_started(story: Story) -> list[tuple[str, str]]:
    reply = story.state.reply
    return [(call.outcome, str(call.attempt)) for call in reply.calls] if reply is not None else []


@requirement("R33")
@by_seeds
def test_facts_that_come_twice_change_nothing(seeds: range) -> None:
    """Every fact repeated, right behind the first or at the end: the same state."""
    for story in stories(seeds):
        whole = fold(story.records, empty())
        facts = [record for record in story.records if isinstance(record.body, FACTS)]
        assert fold(facts, copied(whole)) == whole, story.seed
        twice = [record for one in story.records for record in ((one, one) if one in facts else (one,))]
        assert fold(twice, empty()) == whole, story.seed


@by_seeds
def test_the_first_of_two_decisions_wins_and_the_other_is_void(seeds: range) -> None:
    """Every decision repeated under another id, by an owner who did not know: nothing changes."""
    for story in stories(seeds):
        whole = fold(story.records, empty())
        with_rivals: list[Record] = []
        for record in story.records:
            with_rivals.append(record)
            if record.follows is not None:
                with_rivals.append(replace(record, event_id=f"rival-{record.event_id}"))
        assert fold(with_rivals, empty()) == whole, story.seed


@requirement("R12")
@by_seeds
def test_outcomes_of_what_is_over_move_neither_phase_nor_calls(seeds: range) -> None:
    """Late and foreign reports, replies and failures are kept or counted; the run goes where it went."""
    for story in stories(seeds):
        before = copied(story.state)
        reply = story.state.reply
        story.add(ModelReplied(model_call="e1", items=[], finish_reason="stop"))
        story.add(ModelFailed(model_call="nobody's", kind="x", message="", retryable=False))
        if reply is not None:
            for call in reply.calls:
                if call.outcome and call.dispatches:
                    story.add(story.report(call.position, "late", nonce="late"))
        story.add(
            ToolReported(
                model_call="nobody's", position=0, dispatch="x", source="s", outcome="succeeded", output="foreign"
            )
        )
        assert (story.state.phase, story.state.reply) == (before.phase, before.reply), story.seed
        assert story.state.transcript == before.transcript, story.seed


@requirement("R4")
@requirement("R6")
@by_seeds
def test_what_the_model_sees_is_in_order(seeds: range) -> None:
    """While a model call is in flight, each call before it has exactly one result, in call order."""
    for story in stories(seeds):
        for state in story.states():
            if state.call is not None and is_call_wanted(state, state.call.id):
                assert check_order(state.transcript) is None, story.seed
                assert state.reply is None, story.seed


@by_seeds
def test_a_result_once_known_never_changes(seeds: range) -> None:
    """A call is closed by the first event that closes it, and what the model saw stays what it saw."""
    for story in stories(seeds):
        known: dict[tuple[str, int], str] = {}
        seen: list[str] = []
        for state in story.states():
            for call in state.reply.calls if state.reply is not None else ():
                if call.outcome:
                    assert state.reply is not None
                    key = (state.reply.model_call, call.position)
                    assert known.setdefault(key, call.outcome + call.output) == call.outcome + call.output, story.seed
            results = [repr(entry) for entry in state.transcript if isinstance(entry, Results)]
            assert results[: len(seen)] == seen, story.seed
            seen = results


@requirement("R11")
@by_seeds
def test_no_tool_is_started_twice_unless_it_says_that_it_may(seeds: range) -> None:
    """Whoever crashed or was cut off: one effective dispatch for each call, more only for idempotent ones and waits."""
    for story in stories(seeds):
        for state in story.states():
            for call in state.reply.calls if state.reply is not None else ():
                assert call.attempt == len(call.dispatches)
                may = call.tool is not None and (call.tool.idempotent or call.tool.resumable)
                assert call.attempt <= 1 or may, story.seed


@requirement("R27")
@by_seeds
def test_nothing_is_in_flight_for_a_run_that_is_cancelled_or_over(seeds: range) -> None:
    """Effects rest on the state at the moment of acting."""
    for story in stories(seeds):
        for state in story.states():
            if state.cancel is not None or state.finished is not None:
                assert pending_tools(state) == [], story.seed
                assert state.call is None or not is_call_wanted(state, state.call.id), story.seed


@requirement("R8")
@by_seeds
def test_after_the_report_nothing_more_happens(seeds: range) -> None:
    """Whatever is read afterwards: nothing is decided, nothing is in flight, the result stays."""
    for story in stories(seeds):
        story.is_cancelled()
        story.goes_on()
        story.completion = "c1"
        story.goes_on()
        assert story.state.reported, story.seed
        result = story.state.finished
        for record in list(story.records):
            story.again(record)
            assert story.decided() == ([], None), story.seed
        assert story.state.finished == result
        assert completion_of(story.state) is None
        assert pending_tools(story.state) == []


@requirement("R3")
@by_seeds
def test_every_change_of_phase_is_an_event(seeds: range) -> None:
    """The header says the phase after each effective decision; facts alone never move it."""
    for story in stories(seeds):
        state = empty()
        for record in story.records:
            before = state.phase
            taken = take(state, record)
            if taken is not EFFECTIVE:
                assert state.phase == before, (story.seed, record.type)
            assert (taken is VOID) <= isinstance(record.body, DECISIONS)


def test_the_histories_are_worth_trying() -> None:
    """Ends of every kind and most decisions occur: laws about what never happens would prove nothing."""
    ends: set[str] = set()
    kinds: set[str] = set()
    voids = 0
    for story in stories(range(SEEDS)):
        ends |= {story.state.finished.status} if story.state.finished is not None else {"going on"}
        kinds |= set(names(record.body for record in story.records if record.body is not None))
        state = empty()
        voids += sum(take(state, record) is VOID for record in story.records)
    assert {"completed", "cancelled", "failed", "timed_out", "limit_exceeded", "going on"} <= ends
    assert {event.__name__ for event in (*FACTS, *DECISIONS)} - kinds <= {
        "RunLost",
        "PartitionOpened",
        "UnparkRequested",
        "RunUnparked",
        "RunParked",
        "RunCheckpointed",
    }
    assert voids > SEEDS / 4
