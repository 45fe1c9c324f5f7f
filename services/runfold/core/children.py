"""Delegation: a call that asks for a task of its own, and waits for it.

The child is an ordinary run with an id made of the call's identity, so that whoever asks again asks for the same one.
Its budget is its share of what the parent has left, fixed when the dispatch is folded; what it used is charged to the
parent when it ends.
"""

import hashlib
import re

from runfold.core.state import RunState, ToolCall
from runfold.core.transcript import parse_arguments
from runfold.core.waits import open_calls
from runfold.events.text import sanitised
from runfold.events.types import TaskRequested

ID_CHARS_MAX = 80  # of the parent's id inside the child's


def child_id(run_id: str, model_call: str, position: int) -> str:
    digest = hashlib.sha256(f"{run_id}\0{model_call}\0{position}".encode()).hexdigest()
    return f"{run_id[:ID_CHARS_MAX]}.{digest[:16]}"


CHILD_ID = re.compile(r"(.+)\.[0-9a-f]{16}", re.DOTALL)


def parent_by_id(run_id: str) -> str | None:
    """Whose child this may be, where its request is lost. Somebody who did not ask for it takes no notice."""
    found = CHILD_ID.fullmatch(run_id)
    return found[1] if found is not None else None


def delegate(state: RunState, call: ToolCall) -> None:
    """A dispatch of a delegation counts: its child is open from here on. Its siblings leave it an equal share."""
    if state.reply is None or call.child:
        return
    call.child = child_id(state.run_id, state.reply.model_call, call.position)
    state.open_children.add(call.child)
    state.counters.children += 1
    sharing = sum(c.tool is not None and c.tool.waits_for == "child" for c in open_calls(state))
    call.child_tokens = max(1, (state.limits.tokens - state.counters.tokens) // max(1, sharing))
    call.child_tool_calls = max(0, (state.limits.tool_calls - state.counters.tool_calls) // max(1, sharing))


def delegation_problem(state: RunState, children_asked: int) -> str | None:
    """Why one more delegation is refused, or None."""
    depth = state.task.depth if state.task is not None else 0
    if depth >= state.limits.depth:
        return f"delegations may be nested {state.limits.depth} deep, and this task is at that depth"
    if state.counters.children + children_asked >= state.limits.children:
        return f"the limit of {state.limits.children} delegations is reached"
    return None


def child_requests(state: RunState) -> list[TaskRequested]:
    """The tasks that open delegations wait for. Asked for by whoever owns the run; repeated, they start nothing new."""
    task = state.task
    if task is None or not state.open_children or state.cancel is not None or state.finished is not None:
        return []
    found = []
    for call in open_calls(state):
        if call.child in state.open_children:
            _, arguments, _ = parse_arguments(call.arguments)
            given = arguments or {}
            found.append(
                TaskRequested(
                    task_id=call.child,
                    agent=sanitised(str(given.get("agent") or task.agent)),
                    definition=None if given.get("agent") else task.definition,
                    input=sanitised(str(given.get("task", ""))),
                    limits={
                        **task.limits,
                        "depth": state.limits.depth,
                        "tokens": call.child_tokens,
                        "tool_calls": call.child_tool_calls,
                    },
                    expires_at_ms=task.expires_at_ms,
                    priority=task.priority,
                    labels=task.labels,
                    parent=state.run_id,
                    depth=task.depth + 1,
                )
            )
    return found


def unwanted_children(state: RunState) -> list[str]:
    """Delegated tasks whose call is closed, or whose parent ends, and that were not seen to end: to be cancelled."""
    if not state.open_children:
        return []
    if state.cancel is not None or state.failure is not None or state.finished is not None:
        return sorted(state.open_children)
    return sorted(state.open_children - {call.child for call in open_calls(state)})
