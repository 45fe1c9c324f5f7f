"""What the shells need of the world, in our words. Adapters own one library each and let none of its names out.

Threads: everything here is called from the executor's loop thread, unless a docstring says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from runfold.core.transcript import Entry
from runfold.events.envelope import Headers
from runfold.events.types import BlobRef, ModelFailed, ModelReplied, ToolReported, ToolSpec


class Transient(Exception):
    """The world may recover: the same call may be tried again after a pause."""


class Permanent(Exception):
    """The answer is no and stays no. The message says what to do about it."""


class InvariantViolation(Exception):
    """A bug of ours. Never asserted (assertions vanish under `python -O`), never caught to go on as before."""


# ---- the log


@dataclass(slots=True)
class Delivery:
    """One record as it came from Kafka."""

    partition: int
    offset: int
    time_ms: int  # broker's append stamp
    key: bytes | None
    value: bytes | None
    headers: Headers | None


@dataclass(slots=True, frozen=True)
class Committed:
    """What the group committed for a partition: its position, and the metadata string that stood beside it."""

    offset: int  # -1: nothing committed
    metadata: str


class LogListener(Protocol):
    """The owner of partitions; called inside `RunLog.poll`, on the thread that polls."""

    def on_assigned(self, partitions: Mapping[int, Committed]) -> Mapping[int, int]:
        """Partitions are ours now. Answers where to start reading each: an offset, or -2 for the start of the log."""

    def on_revoked(self, partitions: Sequence[int], *, lost: bool) -> None:
        """Partitions go away when this returns. `lost`: they are gone already, commit nothing."""

    def on_append_failed(self, partition: int, run_id: str, reason: str) -> None:
        """A record did not reach the log, or nobody knows whether it did."""

    def on_truncated(self, partition: int) -> int:
        """The log no longer holds the offset that was to be read. Answers where to start again."""


class RunLog(Protocol):
    """The run-events topic: the group's partitions of it to read, all of it to append to."""

    @property
    def identity(self) -> "LogIdentity": ...

    def open(self, listener: LogListener) -> None:
        """Join the group. Partitions arrive through the listener during `poll`."""

    def poll(self, timeout_s: float) -> list[Delivery]:
        """The next records of any owned partition, in offset order within each. Empty after the timeout."""

    def append(self, partition: int | None, key: str, value: bytes, headers: Headers) -> None:
        """Hand one record to Kafka (acks=all). Failure comes through `on_append_failed`; the read-back is the proof.

        Records of one partition from one process keep their order. None: the partition of the key. Any thread.
        """

    def start_of(self, partition: int) -> int:
        """The first offset that the log still holds."""

    def seek(self, partition: int, offset: int) -> None:
        """Read this partition from another offset on."""

    def commit(self, positions: Mapping[int, Committed], *, wait: bool) -> None:
        """Commit the group's true positions with their metadata. Errors are not ours to heal: the next commit is."""

    def close(self) -> None:
        """Leave the group (a static member keeps its place), send what is still buffered."""


@dataclass(slots=True, frozen=True)
class LogIdentity:
    """Which log this is: offsets committed for another one are worthless."""

    cluster: str
    topic: str  # topic id, not name: a deleted and recreated topic is another log
    partitions: int


class Topic(Enum):
    """Where a record goes that is not of the run that sends it."""

    COMPLETIONS = "task-completions"
    REQUESTS = "task-requests"  # a delegated task, or its cancel
    EVENTS = "run-events"  # a fact for another run: the parent's


class Outbox(Protocol):
    """Records whose arrival somebody waits for, and those for eyes only. Any thread."""

    def publish(
        self, topic: Topic, key: str, value: bytes, headers: Headers, acknowledged: Callable[[bool], None]
    ) -> None:
        """Send one record; `acknowledged` is called during a later `RunLog.poll` on the loop thread."""

    def quarantine(self, key: str, value: bytes, headers: Headers) -> None: ...

    def stream(self, run_id: str, value: bytes, headers: Headers) -> None:
        """Publish for eyes only: lost under pressure rather than waited for."""


# ---- the model


@dataclass(slots=True, kw_only=True)
class ModelRequest:
    """One attempt of a model call."""

    run_id: str
    call: str  # event id of its ModelCallStarted
    model: str
    instructions: str
    transcript: Sequence[Entry]
    tools: Sequence[ToolSpec]
    may_call: bool = True  # False: the tools are named, but none may be called
    output_tokens_max: int | None = None
    result_schema: str | None
    time_limit_s: float


ModelOutcome = ModelReplied | ModelFailed


class Model(Protocol):
    """A model behind an API, or in process."""

    def start(
        self,
        request: ModelRequest,
        done: Callable[[ModelOutcome], None],
        delta: Callable[[int, str], None],
    ) -> ModelOutcome | None:
        """Begin the call. A model that blocks works elsewhere and calls `done` once, from any thread.

        One that answers at once may return its outcome instead; then `done` is not called.
        `delta(offset, text)` shows a piece of text as it comes; offsets count characters from the start of this call.
        Every failure is an outcome, never an exception.
        """

    def stop(self, call: str) -> None:
        """Nobody waits for this call any more: close its stream. `done` need not be called."""


# ---- tools


@dataclass(slots=True, kw_only=True)
class ToolStart:
    """What a tool is given."""

    run_id: str
    model_call: str
    position: int
    dispatch: str
    attempt: int
    tool: str
    arguments: str  # JSON object as text
    time_limit_s: float
    idempotency_key: str
    sandbox: str = ""  # whose workspace it works in; empty: the run's first one
    nonce: str = ""  # of the claim, for tools whose effect is claimed


class Tools(Protocol):
    """Runs the tools of one class."""

    def start(self, start: ToolStart, done: Callable[[ToolReported], None]) -> ToolReported | None:
        """Begin the tool. Called once per dispatch and process. Like `Model.start`: an outcome now, or `done` later.

        Every failure of the tool is a report with outcome `failed`.
        """

    def stop(self, dispatch: str) -> None:
        """The call was closed: stop the work if that can be done."""


class ClaimedTools(Tools, Protocol):
    """Tools whose effect begins behind a claim: the first claim in the log starts it, whoever owns the run."""

    @property
    def identity(self) -> str:
        """Where this process starts its tools; stands in ToolClaimed."""

    def has_workspace(self, run_id: str, sandbox: str) -> bool:
        """Is this workspace of the run here, as its calls left it?"""

    def new_workspace(self, run_id: str) -> str:
        """Make an empty one for the run, beside any other; answers what it is called in the log."""

    def adopt(self, start: ToolStart, process: str, done: Callable[[ToolReported], None]) -> bool:
        """Take over a call that another process claimed: True if it runs here, or has ended and left its result.

        Then `done` is called once, as for `start`. False: nothing is known of it here, and nobody here will report.
        """


# ---- blobs and time


class Blobs(Protocol):
    """Content-addressed payloads. Any thread."""

    def put(self, payload: bytes) -> BlobRef:
        """Store, then answer the ticket. Storing the same payload again is success."""

    def get(self, ref: BlobRef) -> bytes:
        """The payload, checked against its digest. Raises LookupError if it is not there."""


class Clock(Protocol):
    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int:
        """For people only; nothing is decided by it."""
