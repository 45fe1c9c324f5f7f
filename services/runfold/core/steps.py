"""The words of deciding: what is asked, and what is answered. See `decide.py`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from runfold.core.phases import Phase
from runfold.events.types import ContextLoaded, Decision, RunRequested, ToolSpec


class Catalog(Protocol):
    """What a deployment offers. Answers must not change while a run decides on them: the fold records what was used."""

    def context(self, task: RunRequested) -> ContextLoaded | str:
        """The agent for this task, or what is wrong with asking for it."""

    def argument_problem(self, tool: ToolSpec, arguments: dict[str, Any]) -> str | None:
        """Why these arguments break the tool's schema, or None."""


class Step(NamedTuple):
    """One decision, and the phase the run is in after it."""

    event: Decision
    phase: Phase


@dataclass(slots=True, kw_only=True)
class Situation:
    """The deciding process, as far as it matters."""

    now_ms: int  # log time: see design section 2, "Time is data"
    assigned_at_ms: int = 0  # log time when this process took the partition over
    base_offset: int = 0  # reading the partition from here rebuilds the run
    session_timeout_ms: int = 6_000
    is_ours: Callable[[str], bool] = field(default=lambda _: False)  # made by this process since then
    is_held: Callable[[str], bool] = field(default=lambda _: False)  # a claimed dispatch that runs or ran here
    sandbox: str = ""  # an empty workspace for a run whose own is not here; empty: it is, or none is needed
    completion: str = ""  # event id of the acknowledged TaskCompleted


class Decided(NamedTuple):
    """The chain to append, and when to decide again if nothing happens before."""

    steps: list[Step]
    wake_at_ms: int | None


NOTHING = Decided([], None)


def earliest(first_ms: int | None, second_ms: int | None) -> int | None:
    if first_ms is None or second_ms is None:
        return second_ms if first_ms is None else first_ms
    return min(first_ms, second_ms)
