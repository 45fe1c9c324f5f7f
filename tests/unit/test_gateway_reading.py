"""The read side on a log in memory: acceptance, what is kept and what is read again, what becomes of commands."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from runfold.core.checkpoint import packed
from runfold.core.pending import completion_of
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter, Record
from runfold.events.types import (
    ApprovalDecided,
    CancelRequested,
    CloseRequested,
    MessageReceived,
    ModelTextDelta,
    PhaseEntered,
    RunCheckpointed,
    RunParked,
    RunUnparked,
    UnparkRequested,
)
from runfold.gateway import reading as reading_module
from runfold.gateway.reading import Reading
from runfold.gateway.story import Story as Telling
from runfold.gateway.tracked import Tracked
from runfold.gateway.views import run_view
from runfold.gateway.watching import Watch
from runfold.ports import Delivery
from tests.builders import (
    Story,
    asked_for,
    call,
    calling,
    content,
    dispatched,
    finished,
    reported,
    requested,
    text,
    waiting,
)

CODEC = Codec()
HEADERS = HeaderWriter("/test")


def delivered(record: Record, offset: int) -> Delivery:
    """The record as Kafka has it; one without a body is of a type that nobody knows."""
    if record.follows is None:
        headers = HEADERS.fact(record.type, record.event_id, 0)
    else:
        headers = HEADERS.decision(
            record.type, record.event_id, 0, follows=record.follows, revision=record.revision, phase=record.phase
        )
    value = b"?" if record.body is None else CODEC.encode(record.body)
    return Delivery(record.partition, offset, record.time_ms, record.run_id.encode(), value, headers)


class Log:
    """Feed and history of one partition."""

    def __init__(self, *stories: Story, start: int = 0) -> None:
        records = [record for story in stories for record in story.records]
        self.records = [delivered(record, offset) for offset, record in enumerate(records)][start:]
        self.start = start
        self.positions = {0: start}
        self.shown: list[Delivery] = []
        self.looks_back = 0

    def ends(self) -> dict[int, int]:
        return {0: self.start + len(self.records)}

    def poll(self, timeout_s: float) -> tuple[list[Delivery], list[Delivery]]:
        new = [each for each in self.records if each.offset >= self.positions[0]][:3]
        self.positions = {0: self.positions[0] + len(new)}
        shown, self.shown = self.shown, []
        return new, shown

    def end_of(self, partition: int) -> int:
        return self.ends()[0]

    def read(self, partition: int, first: int, end: int, key: bytes) -> Iterator[Delivery]:
        self.looks_back += 1
        yield from (replace(each) for each in self.records if first <= each.offset < end and each.key == key)

    def add(self, story: Story) -> None:
        """What the story has more than the log."""
        there = len(self.records) + self.start
        self.records += [delivered(record, there + at) for at, record in enumerate(story.records[there:])]

    def close(self) -> None: ...


def read(log: Log) -> Reading:
    """Everything that is there."""
    made = Reading(feed=log, history=log, codec=CODEC, tell=lambda _text: None)
    return catch_up(made)


def catch_up(made: Reading) -> Reading:
    made.step(0)
    while made.position(0) < made.feed.ends()[0]:
        made.step(0)
    return made


def named(story: Story, run_id: str) -> Story:
    """The same records under another run."""
    story.records = [replace(record, run_id=run_id) for record in story.records]
    return story


def test_it_is_ready_when_it_has_read_to_the_end_of_the_start() -> None:
    """Not before, and records that come meanwhile do not keep it back."""
    log = Log(reported())
    made = Reading(feed=log, history=log, codec=CODEC, tell=lambda _text: None)
    made.step(0)
    assert not made.is_ready()
    log.records += [replace(each, offset=each.offset + 100, key=b"late") for each in log.records]
    for _ in range(4):
        made.step(0)
    assert made.is_ready()
    made.failed = "Kafka is gone"
    assert not made.is_ready()


STORIES: dict[str, Callable[[], Story]] = {
    "requested": requested, "calling": calling, "waiting": waiting, "dispatched": lambda: dispatched(call("read")),
    "asked": lambda: asked_for(call("erase"), call("ask")),
}  # fmt: skip


@pytest.mark.requirement("R36")
@pytest.mark.parametrize("name", STORIES)
def test_it_folds_as_the_executor_does(name: str) -> None:
    """The same state from the same records, one that is void among them."""
    story = STORIES[name]()
    story.add(PhaseEntered(phase="awaiting_tools", turn=1), follows="another", name="void")
    made = read(Log(story))
    found = made.look("run", lambda tracked, position: (content(tracked.state), position))
    assert found == (content(story.state), len(story.records))


def test_an_ended_run_is_read_again_when_it_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """View and result are the same as when it had just ended; a long result is always read again."""
    stories = [named(reported(), f"run-{number}") for number in range(4)]
    log = Log(*stories)
    whole = read(log)
    views = {f"run-{n}": whole.look(f"run-{n}", run_view) for n in range(4)}
    assert log.looks_back == 0
    monkeypatch.setattr(reading_module, "RECENT_MAX", 1)
    log = Log(*stories)
    small = read(log)
    assert list(small.recent) == ["run-3"]
    assert small.look("run-3", run_view) == views["run-3"]
    for run_id, view in views.items():
        assert small.look(run_id, run_view) == view
        assert small.completion(run_id) == whole.completion(run_id)
    assert log.looks_back == 4
    assert list(small.recent) == ["run-3"]
    monkeypatch.setattr(reading_module, "RESULT_CHARS_KEPT", 3)
    curt = read(Log(reported()))
    completion = curt.completion("run")
    assert completion is not None
    assert completion.result == "done"


def test_the_oldest_ended_run_is_forgotten_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has an end, and what is beyond it is unknown, not wrong."""
    monkeypatch.setattr(reading_module, "ENDED_MAX", 2)
    made = read(Log(*(named(reported(), f"run-{number}") for number in range(4))))
    assert list(made.ended) == ["run-2", "run-3"]
    assert made.look("run-0", run_view) is None


def test_what_comes_after_the_end_is_known_and_changes_nothing() -> None:
    """A late command is judged, whether the run is kept or read again."""
    story = reported()
    story.add(MessageReceived(command_id="late", text="hello?"))
    for made in (read(Log(story)), read(Log(story))):
        made.recent.clear()
        judged = made.look("run", lambda tracked, _: tracked.commands["late"])
        assert judged is not None
        assert judged.refused == "the run has ended as completed"
    kept = read(Log(story))
    assert kept.look("run", lambda tracked, _: tracked.commands["late"]) == judged


def test_a_record_that_cannot_be_read_is_passed_and_told() -> None:
    """An unknown fact is skipped, an unknown decision halts its run, and another run goes on."""
    story = calling()
    story.take(Record(partition=0, offset=5, time_ms=1, run_id="run", event_id="x", type="NobodyKnows"))
    follows = story.state.last
    story.take(
        Record(partition=0, offset=6, time_ms=1, run_id="run", event_id="y", type="NobodyKnows", follows=follows)
    )
    log = Log(story, named(reported(), "other"))
    log.records.append(Delivery(0, log.ends()[0], 1, b"run", b"", None))
    told: list[str] = []
    made = catch_up(Reading(feed=log, history=log, codec=CODEC, tell=told.append))
    assert (made.records_skipped, len(told)) == (3, 3)
    view = made.look("run", run_view)
    assert view is not None
    assert "upgrade this gateway" in view.reason
    assert made.completion("other") is not None


def test_a_fault_that_one_run_meets_stops_no_other() -> None:
    """It is set aside, visibly: nobody is told something that may be wrong."""
    bad = named(Story(), "bad")
    bad.add(RunCheckpointed(part=1, parts=1, as_of_offset=0, state=b"no checkpoint"), follows="something")
    bad = named(bad, "bad")
    told: list[str] = []
    log = Log(bad, named(reported(), "other"))
    made = catch_up(Reading(feed=log, history=log, codec=CODEC, tell=told.append))
    assert made.completion("other") is not None
    assert len(told) == 1
    assert "bad is not followed any further" in told[0]
    assert made.look("bad", run_view) is None


def test_a_run_whose_beginning_is_gone_is_known_by_its_checkpoint() -> None:
    """Until then it is unknown; from then on it goes on as everywhere."""
    story = dispatched(call("read"))
    start = len(story.records)
    story.hears("before")
    payload = packed(story.state)
    story.add(RunCheckpointed(part=1, parts=1, as_of_offset=start + 1, state=payload))
    story.reports(0)
    story.goes_on()
    log = Log(story, start=start)
    made = Reading(feed=log, history=log, codec=CODEC, tell=lambda _text: None)
    made.step(0)
    catch_up(made)
    assert made.look("run", lambda tracked, _: content(tracked.state)) == content(story.state)
    view = made.look("run", run_view)
    assert view is not None
    assert (view.agent, view.model) == ("agent", "m")


def test_what_an_operator_skipped_is_left_out_by_this_reader_too() -> None:
    """The run is folded again without it when its unparking is read."""
    story = calling()
    bad = len(story.records)
    story.take(
        Record(
            partition=0,
            offset=bad,
            time_ms=1,
            run_id="run",
            event_id="bad",
            type="NobodyKnows",
            follows=story.state.last,
        )
    )
    story.add(RunParked(reason="unknown", base_offset=0, bad_offset=bad))
    story.add(UnparkRequested(command_id="u", mode="skip"))
    story.add(RunUnparked(skipped=[bad]))
    log = Log(story)
    made = read(log)
    found = made.look("run", lambda tracked, _: (tracked.state.halt, tracked.state.parked, tracked.state.phase))
    assert found == (None, None, "calling_model")
    assert log.looks_back == 1


# ---- commands


def tracked_of(story: Story) -> Tracked:
    found = Tracked("run", 0, 0)
    for record in story.records:
        found.take(record)
    return found


@pytest.mark.requirement("R25")
def test_the_first_decision_of_an_approval_counts() -> None:
    """The second is told by whom; one with other arguments is not even written."""
    story = asked_for(call("erase"))
    story.goes_on()
    story.decides(0, approved=True, command_id="one", sender="ana")
    story.decides(0, approved=False, command_id="two", sender="bob")
    found = tracked_of(story)
    assert found.commands["one"].refused == ""
    assert found.commands["two"].refused == "it was already approved by ana"
    event = story.records[-1].body
    assert isinstance(event, ApprovalDecided)
    assert "not that of the arguments" in found.unfounded(replace(event, arguments_sha256="0" * 64))
    assert "no approval" in found.unfounded(replace(event, approval="another"))


@pytest.mark.requirement("R25")
def test_an_expired_approval_says_so() -> None:
    """Expired is not denied."""
    story = asked_for(call("erase"))
    story.goes_on()
    approval = story.state.reply.calls[0].approval
    story.later(300_000).goes_on()
    found = tracked_of(story)
    assert found.approvals[approval].outcome == "expired"
    assert "expired" in found._approval_refusal(found.approvals[approval])


REFUSED = [
    (lambda story: story.is_cancelled(), CancelRequested(command_id="x"), "the run is being cancelled"),
    (lambda story: story.is_cancelled(), MessageReceived(command_id="x", text="a"), "the run is being cancelled"),
    (lambda story: story.is_closed(), MessageReceived(command_id="x", text="a"), "closed to messages"),
    (lambda story: story.is_closed(), CloseRequested(command_id="x"), "closed already"),
]


@pytest.mark.parametrize(("before", "event", "said"), REFUSED)
def test_a_command_that_changes_nothing_is_told_why(before, event, said: str) -> None:
    """In words; and the same when it comes again."""
    story = calling()
    before(story)
    story.add(event)
    story.add(event)
    judged = tracked_of(story).commands["x"]
    assert said in judged.refused
    assert judged.offset == len(story.records) - 2


def test_a_command_that_comes_again_keeps_its_first_answer() -> None:
    """Also when the run has moved on meanwhile."""
    story = waiting()
    story.hears("m")
    first = tracked_of(story).commands["m"]
    story.is_closed()
    story.hears("m")
    assert tracked_of(story).commands["m"] == first


# ---- telling


def test_the_transcript_of_a_carried_run_has_its_results() -> None:
    """What closed before the checkpoint is told from it."""
    story = dispatched(call("read"))
    story.reports(0, "seen")
    story.goes_on()
    start = len(story.records)
    story.add(RunCheckpointed(part=1, parts=1, as_of_offset=start, state=packed(story.state)))
    story.replies(text("done"))
    found = Tracked("run", 0, start, log_start=start)
    telling = Telling(found)
    for record in story.records[start:]:
        telling.take(record, found.take(record))
    entries = telling.transcript(99).entries
    assert [entry.kind for entry in entries] == ["message", "reply", "reply"]
    assert [(row.tool, row.output) for row in entries[1].calls] == [("read", "seen")]


def test_a_watcher_joins_without_a_gap_or_a_repeat() -> None:
    """What it is handed begins where what it must read ends, and the text so far comes with it."""
    story = calling()
    log = Log(story)
    made = read(log)
    delta = ModelTextDelta(model_call=story.model_call, offset=0, text="so far")
    log.shown = [Delivery(0, 0, 0, b"run", CODEC.encode(delta), [])]
    made.step(0)

    async def joins() -> None:
        watch = Watch(asyncio.get_running_loop(), keep=100)
        with made.watching("run", watch):
            story.hears("early")
            log.add(story)
            catch_up(made)
            joined = made.joined("run", watch)
            assert joined is not None
            assert (joined.span.last, joined.writing, len(joined.texts)) == (
                len(story.records) - 1,
                story.model_call,
                1,
            )
            assert watch.taken() == []
            story.hears("late")
            log.add(story)
            catch_up(made)
            assert await watch.came(10)
            assert [item.offset for item, _ in watch.taken()] == [len(story.records) - 1]
        assert made._watches == {}

    asyncio.run(joins())


def test_a_slow_watcher_is_cut_off() -> None:
    """What waits for it has a bound; it must not take the gateway's memory."""

    async def lags() -> None:
        watch = Watch(asyncio.get_running_loop(), keep=2)
        for record in calling().records:
            watch.put(record, None)
        assert (len(watch.taken()), watch.is_overrun) == (2, True)

    asyncio.run(lags())


def test_the_completion_is_the_published_one() -> None:
    """The same function makes both."""
    story = finished()
    published = completion_of(story.state)
    story.completion = "c1"
    story.goes_on()
    assert read(Log(story)).completion("run") == published
