"""People for the crash tests: they say yes, answer, pause and resume, as soon as the log shows that somebody waits.

And a second opinion on such runs, without any code of the core: see `oracle.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from runfold.events.types import (
    ApprovalDecided,
    CancelRequested,
    Event,
    MessageReceived,
    PauseRequested,
    QuestionAnswered,
    ResumeRequested,
)
from tests.integration.harness import PATIENCE_S, Place
from tests.integration.oracle import Seen, accepted

CLOSED_BY = {
    "ask_person": {"QuestionAnswered"},
    "delegate": {"ChildCompleted"},
    "wait": {"waited"},
    "pay": {"ToolReported", "interrupted"},
    "mark": {"ToolReported", "interrupted"},
    "apart": {"ToolReported", "interrupted"},  # where it was claimed, and the process ended before it began
    "fails": {"ToolReported", "interrupted"},
}


@dataclass
class People:
    """Acts on what was read since the last look. What they say has an id of its own: said twice, it counts once."""

    here: Place
    seen: int = 0
    paused: set[str] = field(default_factory=set)
    said: int = 0
    impatient: set[str] = field(default_factory=set)  # runs that are cancelled once their tool is about to start

    def until(self, is_so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        def looks() -> bool:
            self.act()
            return is_so()

        self.here.until(looks, what, patience_s)

    def act(self) -> None:
        records, self.seen = self.here.records[self.seen :], len(self.here.records)
        for each in records:
            if each.topic == "run-events":
                self.see(each)

    def see(self, each: Seen) -> None:
        if each.type == "ApprovalRequired":
            body = each.body
            self.say(
                each.key,
                ApprovalDecided(
                    command_id=f"yes-{each.id}",
                    approval=each.id,
                    arguments_sha256=body.arguments_sha256,
                    approved=True,
                ),
            )
        elif each.type == "ToolDispatchStarted" and each.body.tool == "ask_person":
            answer = QuestionAnswered(
                command_id=f"answer-{each.id}",
                model_call=each.body.model_call,
                position=each.body.position,
                text="the blue one",
            )
            self.say(each.key, answer)
        elif each.type == "ToolClaimed" and each.key in self.impatient:
            self.impatient.discard(each.key)
            self.say(each.key, CancelRequested(command_id=f"stop-{each.key}", reason="changed my mind"))
        elif each.type == "ModelReplied" and each.key not in self.paused and "." not in each.key:  # no child
            self.paused.add(each.key)
            self.say(each.key, PauseRequested(command_id=f"pause-{each.key}"))
            self.say(each.key, MessageReceived(command_id=f"hello-{each.key}", text=f"hello {each.key}"))
            self.say(each.key, ResumeRequested(command_id=f"resume-{each.key}"))

    def say(self, run_id: str, event: Event) -> None:
        self.said += 1
        self.here.fact(run_id, event, f"said-{self.said}-{run_id}")


def people_problems(records: list[Seen], run_id: str, effects: list[tuple[str, str, str]], status: str) -> list[str]:
    """What must not be, of one run with people that is over."""
    run = [each for each in records if each.topic == "run-events" and each.key == run_id]
    chain = accepted(run)
    ends = [each.body.status for each in chain if each.type == "RunFinished"]
    found = [f"ends: {ends}"] if ends != [status] else []
    completions = {each.id for each in records if each.topic == "task-completions" and each.key == run_id}
    if len(completions) != 1:
        found.append(f"completions: {completions}")
    if not chain or chain[-1].type != "TaskReported":
        found.append("nothing was reported at the end")
    dispatches = {each.id: each for each in chain if each.type == "ToolDispatchStarted"}
    approved = {
        (each.body.model_call, each.body.position): each.offset
        for each in chain
        if each.type == "ApprovalRequired" and _said_yes(run, each.id)
    }
    for each in dispatches.values():
        if each.body.tool == "pay" and (each.body.model_call, each.body.position) not in approved:
            found.append(f"{each.id}: paid without a yes")
    mine = [each for each in effects if each[0] == run_id]
    keys = [key for _, key, _ in mine]
    found += [f"{key} had its effect twice" for key in set(keys) if keys.count(key) > 1]
    found += [f"{key} ran without an accepted promise" for _, key, dispatch in mine if dispatch not in dispatches]
    for advanced in (each for each in chain if each.type == "TurnAdvanced"):
        for position in advanced.body.calls:
            found += _wrong_with_call(run, chain, advanced, position, status)
    for each in run:  # what reported had its effect
        if each.type != "ToolReported" or each.body.outcome != "succeeded":
            continue  # one that failed may have been stopped before it did anything
        if f"{each.body.model_call}-{each.body.position}" not in keys:
            found.append(f"{each.body.model_call}-{each.body.position} reported without effect")
    taken = [message for each in chain if each.type == "ModelCallStarted" for message in each.body.messages]
    if len(taken) != len(set(taken)):
        found.append(f"messages taken twice: {taken}")
    return found


def _said_yes(run: list[Seen], approval: str) -> bool:
    return any(each.type == "ApprovalDecided" and each.body.approval == approval and each.body.approved for each in run)


def _wrong_with_call(run: list[Seen], chain: list[Seen], advanced: Seen, position: int, status: str) -> list[str]:
    asked = advanced.body.model_call
    promised = [
        each
        for each in chain
        if each.type == "ToolDispatchStarted"
        and (each.body.model_call, each.body.position) == (asked, position)
        and not _is_paused_at(run, each.offset)
    ]
    if not promised:
        return [] if status == "limit_exceeded" else [f"{asked}-{position}: never dispatched"]
    if len(promised) > 1:
        return [f"{asked}-{position}: {len(promised)} promises"]
    tool = promised[0].body.tool
    closing = min(
        (each for each in run if _closes(each, chain, asked, position, tool)),
        key=lambda each: each.offset,
        default=None,
    )
    if closing is None or closing.offset > advanced.offset:
        return [f"{asked}-{position} {tool}: open when the turn advanced"]
    if closing.type == "ToolReported" and tool != "fails" and closing.body.outcome != "succeeded":
        return [f"{asked}-{position} {tool}: {closing.body.outcome}: {closing.body.output}"]
    how = closing.body.outcome if closing.type == "ToolSettled" else closing.type
    return [] if how in CLOSED_BY[tool] else [f"{asked}-{position} {tool}: closed by {how}"]


def _is_paused_at(run: list[Seen], offset: int) -> bool:
    """A dispatch that landed behind a pause has no effect; there may be another after the resume."""
    words = [each.type for each in run if each.offset < offset and each.type in ("PauseRequested", "ResumeRequested")]
    return words[-1:] == ["PauseRequested"]


def _closes(each: Seen, chain: list[Seen], asked: str, position: int, tool: str) -> bool:
    if each.type == "ChildCompleted":
        return tool == "delegate"  # these runs have one child
    if each.type not in ("ToolReported", "QuestionAnswered", "ToolSettled"):
        return False
    if each.type == "ToolSettled" and each not in chain:
        return False
    return bool(each.body.model_call == asked and each.body.position == position)
