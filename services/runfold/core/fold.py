"""Events onto state. Which of two decisions counts is settled here and nowhere else.

Two kinds of event (design section 2). A *fact* is taken once, by its identity. A *decision* is accepted if and only if
it follows the last accepted decision of its run: the first one in the log wins, every other is void. Accepted is not
effective: a decision whose precondition does not hold at its place moves the chain and changes nothing else; the table
of preconditions is `fold_decisions.py`, that of facts `fold_facts.py`.

`take` never refuses an event and never raises for an odd history: it has already happened. It changes the state in
place; a decision of an unknown type, or one whose body cannot be read, counts in the chain and halts the run, which
`decide` then parks.
"""

from collections.abc import Iterable
from enum import Enum

from runfold.core.fold_decisions import DECISION_RULES
from runfold.core.fold_facts import FACT_RULES
from runfold.core.state import Halt, RunState
from runfold.events.envelope import Record
from runfold.events.types import RunParked


class Taken(Enum):
    """What became of a record."""

    FACT = "fact"
    VOID = "void"  # a decision that follows another than the last accepted one
    EFFECTIVE = "effective"
    WITHOUT_EFFECT = "without effect"  # accepted; its precondition did not hold


VOID, FACT, EFFECTIVE, WITHOUT_EFFECT = Taken.VOID, Taken.FACT, Taken.EFFECTIVE, Taken.WITHOUT_EFFECT


def take(state: RunState, record: Record) -> Taken:
    """Apply one record, its body opened (None: unknown or unreadable)."""
    event = record.body
    if record.follows is None:
        if event is not None:
            rule = FACT_RULES.get(type(event))
            if rule is not None:
                rule(state, record, event)
        return FACT  # an unknown fact is kept in the log and skipped
    if record.follows != state.last or not state.last:
        return VOID
    state.last = record.event_id
    state.revision += 1
    if state.halt is not None and not isinstance(event, RunParked):
        return WITHOUT_EFFECT  # nothing can be built on what could not be folded
    decision_rule = None if event is None else DECISION_RULES.get(type(event))
    if decision_rule is None:
        state.halt = Halt(offset=record.offset, reason=f"this version cannot fold {record.type}")
        return WITHOUT_EFFECT
    return EFFECTIVE if decision_rule(state, record, event) else WITHOUT_EFFECT


def leave_out(state: RunState, record: Record) -> None:
    """Pass a record that an operator chose to skip: its place in the chain counts, its content does not."""
    if record.follows is not None and state.last and record.follows == state.last:
        state.last = record.event_id
        state.revision += 1


def fold(records: Iterable[Record], state: RunState) -> RunState:
    """All records of one run onto its state; answers the same state."""
    for record in records:
        take(state, record)
    return state
