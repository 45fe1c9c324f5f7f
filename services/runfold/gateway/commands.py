"""Commands: the facts of people and of external tools, which their sender wants an answer about. Pure."""

import hashlib
import json
from dataclasses import asdict, dataclass

from runfold.core.state import RunState
from runfold.events.types import (
    ApprovalDecided,
    CancelRequested,
    CloseRequested,
    MessageReceived,
    PauseRequested,
    QuestionAnswered,
    ResumeRequested,
    ToolReported,
)

Command = (
    MessageReceived
    | QuestionAnswered
    | ApprovalDecided
    | CancelRequested
    | PauseRequested
    | ResumeRequested
    | CloseRequested
    | ToolReported
)


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a command, at its place in the log: the same for every reader."""

    digest: str  # of what was asked: tells a repeat from another command under the same id
    offset: int
    refused: str  # why; empty: it counted
    status: str  # of the run after it


def command_key(event: Command) -> str:
    """What makes two records the same command. A dispatch is reported once: its id is the command's."""
    return f"report\0{event.dispatch}" if isinstance(event, ToolReported) else event.command_id


def command_digest(event: Command) -> str:
    """The same for the same wish, under whatever id."""
    said = {"type": type(event).__name__, **asdict(event)}
    said.pop("command_id", None)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


def mark_of(state: RunState, event: Command) -> object:
    """The part of a state that this command is meant to change: it counted if that is another one afterwards."""
    match event:
        case MessageReceived():
            return len(state.mailbox)
        case CancelRequested():
            return state.cancel is not None
        case PauseRequested() | ResumeRequested():
            return state.is_paused
        case CloseRequested():
            return state.closed
        case ApprovalDecided():
            calls = [] if state.reply is None else state.reply.calls
            return [call.decision for call in calls if call.approval == event.approval]
        case QuestionAnswered() | ToolReported():
            reply = state.reply
            if reply is None or reply.model_call != event.model_call or not 0 <= event.position < len(reply.calls):
                return None
            return reply.calls[event.position].outcome
