"""One run in an executor's memory: what the log says of it, and what this process has sent ahead.

Two states. `state` is the read-back one: all effects rest on it. `ahead` has this process's own decisions (and its
model's reply) folded before they come back. While everything lands as sent the two meet; when anything else happens
(`drop_ahead`) the second is thrown away and made anew from the first.
"""

from collections import deque
from dataclasses import dataclass, field

from runfold.core.state import RunState, copied
from runfold.events.envelope import Record


@dataclass(slots=True, eq=False)
class Run:
    state: RunState
    ahead: RunState
    partition: int
    base_offset: int  # reading from here rebuilds the state
    in_flight: deque[Record] = field(default_factory=deque)  # own decisions on their way, oldest first
    ours: set[str] = field(default_factory=set)  # decisions made by this process since the assignment
    model_calls: set[str] = field(default_factory=set)  # started here, no outcome seen
    to_start: list[str] = field(default_factory=list)  # dispatches read back, not started yet
    tools: set[str] = field(default_factory=set)  # dispatches started here
    must_decide: bool = True  # something happened that `ahead` was not asked about
    wake_at_ms: int | None = None  # earliest timer that is set
    claims: dict[str, str] = field(default_factory=dict)  # dispatch to the nonce we claimed it with
    new_sandbox: str = ""  # made here for a run whose workspace was lost
    not_here: set[str] = field(default_factory=set)  # claimed by a process that nothing is known of here
    told_to_stop: set[str] = field(default_factory=set)  # claimed dispatches that nobody waits for
    children_asked: set[str] = field(default_factory=set)  # tasks we asked for
    children_stopping: set[str] = field(default_factory=set)  # and told to stop
    children_stopped: set[str] = field(default_factory=set)  # and Kafka has it
    completing: bool = False  # TaskCompleted is on its way
    completion: str = ""  # its id, once acknowledged
    checkpoint_at: int = -1  # as-of offset of a checkpoint on its way
    checkpoint_bytes: int = 0  # what it weighs
    base_bytes: int = 0  # of the last checkpoint
    bytes_since_base: int = 0  # of its own records
    base_time_ms: int = 0

    @property
    def state_bytes(self) -> int:
        """What its state weighs at most: it was made of these."""
        return self.base_bytes + self.bytes_since_base

    def drop_ahead(self) -> None:
        """Forget what was sent: it is void, lost, or nobody knows. The next decisions get new ids."""
        self.in_flight.clear()
        self.ahead = copied(self.state)
        self.checkpoint_at = -1
        self.must_decide = True


def new_run(state: RunState, partition: int, base_offset: int, time_ms: int) -> Run:
    return Run(state=state, ahead=copied(state), partition=partition, base_offset=base_offset, base_time_ms=time_ms)
