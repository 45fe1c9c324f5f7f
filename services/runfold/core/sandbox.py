"""Rebuilding a run's lost workspace: its successful calls that changed it, again, in order (design section 5).

A workspace lives where its calls ran. When the next owner of the run does not have it, a new one takes its place
(SandboxReplaced) and the calls are repeated, each by its own ReplayStarted, claimed and reported under that event's id. What
a repetition says is compared with what the call said. The first difference or failure ends it (SandboxReady), and the
model is told how far it came. Running processes and connections do not come back.
"""

from dataclasses import dataclass

from runfold.core.fold_tools import is_stopped
from runfold.core.phases import TOOL_PHASES
from runfold.core.state import Replay, RunState
from runfold.core.transcript import Reply, Results, calls_of, parse_arguments
from runfold.events.envelope import Record
from runfold.events.types import ReplayStarted, SandboxReady, SandboxReplaced, ToolClaimed, ToolReported, ToolSpec


@dataclass(slots=True, kw_only=True)
class Change:
    """A call that changed the workspace, and what it said."""

    model_call: str
    position: int
    tool: ToolSpec
    arguments: str
    output: str


def changes(state: RunState) -> list[Change]:
    """All of them, in order. Read from the transcript: nothing is kept for a loss that rarely comes."""
    tools = {tool.name: tool for tool in state.context.tools} if state.context is not None else {}
    found = []
    said: dict[str, Reply] = {}
    for entry in state.transcript:
        if isinstance(entry, Reply):
            said[entry.model_call] = entry
        elif isinstance(entry, Results) and entry.model_call in said:
            items = calls_of(said[entry.model_call].items)
            for result in entry.results:
                tool = tools.get(result.name)
                if tool is not None and _changes(tool) and result.outcome == "succeeded":
                    arguments, _, _ = parse_arguments(items[result.position].arguments)
                    change = Change(
                        model_call=entry.model_call,
                        position=result.position,
                        tool=tool,
                        arguments=arguments,
                        output=result.output,
                    )
                    found.append(change)
    if state.reply is not None:
        for call in state.reply.calls:
            if call.tool is not None and _changes(call.tool) and call.outcome == "succeeded":
                change = Change(
                    model_call=state.reply.model_call,
                    position=call.position,
                    tool=call.tool,
                    arguments=call.arguments,
                    output=call.output,
                )
                found.append(change)
    return found


def is_in_use(state: RunState) -> bool:
    """Does a call run in the workspace, wherever that is?"""
    calls = state.reply.calls if state.reply is not None else []
    return any(call.claim and not call.outcome and call.tool is not None and call.tool.workspace for call in calls)


def _changes(tool: ToolSpec) -> bool:
    return tool.workspace and tool.changes_state


# ---- facts


def replay_claimed(state: RunState, event: ToolClaimed) -> bool:
    """Was it a claim of a repetition? The first counts."""
    replay = state.replay
    if replay is None or not replay.current or replay.current != event.dispatch:
        return False
    if not replay.claim and state.cancel is None and state.finished is None:
        replay.claim = event.nonce
        replay.claimed_by = event.process
    return True


def replay_reported(state: RunState, event: ToolReported) -> bool:
    """Was it the outcome of a repetition? It closes no call."""
    replay = state.replay
    if replay is None or not replay.current or replay.current != event.dispatch:
        return False
    if event.nonce and replay.claim and event.nonce != replay.claim:
        return True
    wanted = next(c for c in changes(state) if (c.model_call, c.position) == (replay.model_call, replay.position))
    if event.outcome != "succeeded":
        replay.problem = f"call {replay.restored + 1} ({wanted.tool.name}) failed this time"
    elif event.output != wanted.output:
        replay.problem = f"call {replay.restored + 1} ({wanted.tool.name}) had another result this time"
    else:
        replay.restored += 1
    replay.current = replay.claim = replay.claimed_by = ""
    return True


# ---- decisions


def sandbox_replaced(state: RunState, record: Record, event: SandboxReplaced) -> bool:
    """Effective while tools are waited for; the run neither ends nor pauses. A rebuild that is under way begins anew.

    And if it knows all that is to be repeated, and nothing runs in the lost one: a report or a claim may stand before it
    of which its author did not know.
    """
    if state.phase not in TOOL_PHASES or event.sandbox == state.sandbox or state.reply is None or is_stopped(state):
        return False
    if event.calls != len(changes(state)) or is_in_use(state):
        return False
    state.sandbox = event.sandbox
    state.replay = Replay(calls=event.calls)
    return True


def replay_started(state: RunState, record: Record, event: ReplayStarted) -> bool:
    """Effective if that sandbox is the run's current one, and it is that call's turn."""
    replay = state.replay
    if replay is None or replay.current or replay.problem or event.sandbox != state.sandbox or is_stopped(state):
        return False
    if event.number != replay.restored + 1:
        return False
    replay.current = record.event_id
    replay.model_call = event.model_call
    replay.position = event.position
    replay.started_at_ms = record.time_ms
    replay.time_limit_ms = event.time_limit_ms
    return True


def sandbox_ready(state: RunState, record: Record, event: SandboxReady) -> bool:
    """Effective if that sandbox is being rebuilt."""
    if state.replay is None or event.sandbox != state.sandbox or is_stopped(state):
        return False
    state.replay = None
    state.notes.append(event.message)
    for call in state.reply.calls if state.reply is not None else ():
        if call.dispatches and not call.claim and call.tool is not None and call.tool.workspace:
            call.dispatched_at_ms = record.time_ms  # its time limit is for its own work
    return True
