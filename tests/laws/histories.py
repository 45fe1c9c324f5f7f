"""Random histories of one run: owners, models, tools and people doing anything they may, and some things twice."""

from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from runfold.core.fold import take
from runfold.core.state import RunState, copied
from runfold.events.types import (
    FACTS,
    Event,
    Item,
    LateReportRecorded,
    ModelCallStarted,
    RunFailed,
    RunFinished,
    SandboxReplaced,
    ToolFenced,
    Totals,
    TurnAdvanced,
)
from tests.builders import TOOLS, Story, call, requested, text

STEPS = 45


class RandomStory(Story):
    """A story that tells itself."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = Random(seed)
        self.seed = seed

    def states(self) -> Iterator[RunState]:
        """The state after each record: one and the same, changed in place."""
        state = RunState(run_id=self.run_id)
        yield state
        for record in self.records:
            take(state, record)
            yield state

    def go(self) -> None:
        self.rng.choice(self._choices())()

    def _choices(self) -> list[Callable[[], object]]:
        common: list[Callable[[], object]] = [
            self.steps_once,
            self.steps_once,
            self.part_of_a_chain,
            self.wait,
            self.outcome,
            self.outcome,
            self.outcome,
            self.outcome,
        ]
        rare: list[Callable[[], object]] = [
            self.repeat,
            self.rival,
            self.hears_something,
            self.changes_owner,
            self.misplaced,
            self.acknowledge,
            self.loses_workspace,
            self.loses_workspace,
            self.loses_workspace,
        ]
        rarest: list[Callable[[], object]] = [
            self.is_cancelled,
            self.is_closed,
            self.mark_late,
            self.is_paused,
            self.is_resumed,
            self.is_fenced,
        ]
        return common if self.rng.random() < 0.75 else rare if self.rng.random() < 0.85 else rarest

    def part_of_a_chain(self) -> None:
        """The owner dies in the middle of appending."""
        steps = self.decided().steps
        for step in steps[: self.rng.randrange(len(steps) + 1)]:
            record = self.record(step.event, phase=step.phase)
            self.ours.add(record.event_id)
            self.take(record)
            self.workspace_is_here = self.workspace_is_here or isinstance(step.event, SandboxReplaced)

    def wait(self) -> None:
        self.later(self.rng.choice((1, 1, 500, 2_000, 7_000, 20_000, 120_000, 300_000)))

    def hears_something(self) -> None:
        self.hears(f"m{self.rng.randrange(6)}")

    def outcome(self) -> None:
        """What is waited for happens: the model answers or fails, a tool reports."""
        if self.state.replay is not None and self.state.replay.current and self.rng.random() < 0.7:
            self.replays(f"result {self.rng.randrange(2)}", nonce=self.rng.choice(("", "0")))
            return
        reply = self.state.reply
        started = [c.position for c in reply.calls if c.dispatches] if reply is not None else []
        asked = [c.position for c in reply.calls if c.approval] if reply is not None else []
        if asked and self.rng.random() < 0.5:
            self.decides(self.rng.choice(asked), approved=self.rng.random() < 0.7)
        elif started:
            self.tool_outcome(self.rng.choice(started))
        elif self.state.call is not None and self.state.reply is None:
            self.answer()

    def tool_outcome(self, position: int) -> None:
        """A tool reports, perhaps after its claim; a person answers; a child ends."""
        assert self.state.reply is not None
        found = self.state.reply.calls[position]
        nonce = str(self.rng.randrange(2))
        waits_for = found.tool.waits_for if found.tool is not None else ""
        if waits_for == "person":
            self.answers(position, f"answer {self.rng.randrange(9)}")
        elif waits_for == "child":
            self.child_ends(position, self.rng.choice(("completed", "failed", "cancelled")), tokens=3)
        elif found.tool is not None and found.tool.tool_class == "process" and self.rng.random() < 0.6:
            self.claims(position, nonce)
        else:
            self.add(self.report(position, f"result {self.rng.randrange(9)}", nonce=nonce))

    def loses_workspace(self) -> None:
        if self.state.sandbox:
            self.loses_its_workspace()

    def is_fenced(self) -> None:
        self.add(ToolFenced(model_call="any", position=0, dispatch="any", nonce="n", process="host/2"))

    def answer(self) -> None:
        rng = self.rng
        dice = rng.random()
        if dice < 0.12:
            self.fails(retryable=rng.random() < 0.9, retry_after_ms=rng.choice((None, 9_000)))
            return
        items: list[Item] = [text(rng.choice(("", "hm", "well then")))]
        for _ in range(rng.choice((0, 1, 1, 2, 3, 10)) if dice < 0.8 else 0):
            name = rng.choice([*(tool.name for tool in TOOLS), "teleport", "run", "run", "run", "run"])
            items.append(call(name, rng.choice(("{}", '{"a": 1}', '{"a": 11, "seconds": 9}', '{"bad": 1}', "{"))))
        self.replies(*items, finish=rng.choice(("", "", "", "", "", "", "length")), tokens=rng.randrange(60_000))

    def repeat(self) -> None:
        """A fact is delivered twice."""
        facts = [record for record in self.records if isinstance(record.body, FACTS)]
        self.again(self.rng.choice(facts))

    def rival(self) -> None:
        """Another owner decided on a state that is past: void."""
        decisions = [record for record in self.records if record.follows is not None]
        if decisions:
            loser = self.rng.choice(decisions)
            self.add(loser.body or self.misplaced_event(), follows=loser.follows, phase=loser.phase)

    def misplaced(self) -> None:
        """A decision that is accepted, whose precondition may not hold."""
        if not self.state.reported:
            self.add(self.misplaced_event(), phase=str(self.state.phase))

    def misplaced_event(self) -> Event:
        events: tuple[Event, ...] = (
            ModelCallStarted(turn=7, attempt=1, model="m", prompt_digest="", transcript_length=1, messages=[]),
            TurnAdvanced(model_call="none", turn=1, calls=[]),
            RunFinished(status="completed", result_of="none", totals=Totals()),
            *((RunFailed(kind="x", message="y", phase=""),) if self.rng.random() < 0.2 else ()),
        )
        return self.rng.choice(events)

    def acknowledge(self) -> None:
        if self.state.finished is not None:
            self.completion = "c1"

    def mark_late(self) -> None:
        for late in list(self.state.late.values()):
            self.add(
                LateReportRecorded(
                    model_call=late.model_call, position=late.position, dispatch=late.dispatch, report=late.report
                )
            )


def random_story(seed: int) -> RandomStory:
    """The same history for the same seed; the caller may go on with it."""
    told = _told(seed)
    story = RandomStory(seed)
    story.rng = Random(f"{seed} goes on")
    story.records = told.records.copy()
    story.state = copied(told.state)
    story.now_ms, story.assigned_at_ms, story.completion = told.now_ms, told.assigned_at_ms, told.completion
    story.ours = told.ours.copy()
    story.workspace_is_here = told.workspace_is_here
    return story


@cache  # many laws are tried on the same histories
def _told(seed: int) -> RandomStory:
    story = RandomStory(seed)
    if story.rng.random() < 0.2:
        story.rng.choice((story.is_cancelled, story.hears_something, story.is_closed))()
    task = requested(
        interactive=story.rng.random() < 0.4,
        limits=story.rng.choice(
            ({}, {}, {"tool_calls": 4, "last_turn_tokens": 0}, {"tokens": 90_000}, {"tools_in_flight": 2})
        ),
        not_before_ms=story.now_ms + 1_000 if story.rng.random() < 0.1 else None,
        expires_at_ms=story.now_ms + 400_000 if story.rng.random() < 0.2 else None,
    ).records[0]
    assert task.body is not None
    story.add(task.body)
    for _ in range(STEPS):
        story.go()
    return story
