"""Every record on Runfold's topics, as values. The class name is the name on the wire.

A type here has one Avro schema in `schemas/`; `codec.py` turns one into the other. Facts are what happened,
written by anyone trusted; decisions are written by the executor, each naming the decision it follows (in the headers).

The classes read as frozen to the type checker. At run time they are plain slotted classes: a frozen dataclass sets each
field through `object.__setattr__`, which made building an event three times as slow (measured), on the hottest path
there is. Units are in the names: `_ms` milliseconds (a time of day: since 1970 UTC), `_bytes` bytes.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

T = TypeVar("T")

if TYPE_CHECKING:

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
    def event(cls: type[T]) -> type[T]: ...

else:
    event = dataclass(slots=True, kw_only=True)


# ---- values inside events

PARTS_ELSEWHERE = "[]"  # in place of content parts, beside a BlobRef: the payload is parts, however text may look


@event
class BlobRef:
    """A claim-check: names a payload in the blob store, and proves which one is meant."""

    sha256: str  # lower-case hex digest of the payload
    size_bytes: int


@event
class Item:
    """One item of a model's reply. Fields that do not belong to the kind are empty."""

    kind: str  # text, reasoning, refusal or call
    text: str = ""  # text, reasoning, refusal: what was said
    name: str = ""  # call: the tool's name, as the model wrote it
    arguments: str = ""  # call: the arguments as the model wrote them; JSON if the model kept to the rules
    provider_id: str = ""  # call: the provider's id, for people only; it may repeat or be empty
    extra: str | None = None  # JSON object of provider fields to send back to the same provider


@event
class Usage:
    """Tokens as the provider counted them; null where it did not say."""

    input_tokens: int | None = None  # includes cached ones
    output_tokens: int | None = None
    total_tokens: int | None = None  # some providers count reasoning only here
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@event
class ToolSpec:
    """A tool as the run sees it: fixed when the context is loaded, whatever is deployed later."""

    name: str
    description: str
    parameters: str  # JSON Schema of the arguments, as JSON text
    tool_class: str  # inline, process, job, sandbox, external or mcp
    time_limit_ms: int
    changes_state: bool  # calls that change state run one after the other, in call order
    idempotent: bool = False  # may be started again after a start without an outcome
    resumable: bool = False  # a wait operation: resumed under the same call after a crash
    waits_for: str = ""  # time, person or child: nothing runs, the run itself waits; empty for every other tool
    approval: str = ""  # always, or an expression over the arguments; empty: no person is asked
    approval_reason: str = ""  # what the person is told
    workspace: bool = False  # changes nothing but the run's workspace: repeated when that was lost


@event
class Totals:
    """What a run has used so far."""

    turns: int = 0
    model_calls: int = 0
    model_failures: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    tokens: int = 0  # charged: the larger of total and input + output; an estimate where a provider is silent
    input_tokens: int = 0
    output_tokens: int = 0
    tokens_estimated: bool = False  # at least one reply came without usage
    active_ms: int = 0  # time in turns; waits for people do not count


# ---- facts


@event
class RunRequested:
    """A task was asked for: the first record of a run. With `problem`, it was malformed and is only to be rejected."""

    task_id: str
    agent: str  # name of a configured agent; empty with an inline definition
    definition: str | None = None  # inline agent, as JSON text
    input: str = ""  # the first user message
    input_parts: str | None = None  # content parts as JSON text, instead of the text
    input_ref: BlobRef | None = None  # the input, when too large to stand here; parts if input_parts is [], else text
    interactive: bool = False  # waits for further messages after each answer
    result_schema: str | None = None  # JSON Schema of the result, as JSON text
    limits: dict[str, int] = field(default_factory=dict)  # limits of this task, by name
    not_before_ms: int | None = None
    expires_at_ms: int | None = None
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    parent: str | None = None  # run id of the parent
    depth: int = 0  # 0 for a task of the outside, one more for each delegation
    request_digest: str = ""  # sha256 of the request as it came: tells a repeat from another body
    problem: str | None = None  # what is wrong with the request; the run is rejected with it


@event
class ModelReplied:
    """A model call ended well: all items of one reply, after its finish reason was seen."""

    model_call: str  # event id of its ModelCallStarted
    items: list[Item]
    finish_reason: str  # stop, tool_calls, length, content_filter, refusal or other
    model: str = ""  # as the provider named it
    usage: Usage | None = None
    request_id: str | None = None  # the provider's, for its support
    first_token_ms: int | None = None
    duration_ms: int = 0


@event
class ModelFailed:
    """A model call ended badly."""

    model_call: str
    kind: str  # rate_limited, transient, broken_stream, timed_out, bad_request, context_exhausted, refused, ...
    message: str
    retryable: bool
    retry_after_ms: int | None = None  # what the provider asked for
    status: int | None = None  # HTTP status
    request_id: str | None = None
    duration_ms: int = 0
    usage: Usage | None = None  # of an attempt that broke off, where the provider said so
    chars: int = 0  # of the reply, that had come when it broke: they are paid for


@event
class ToolReported:
    """A tool's outcome, by whoever ran or watched it."""

    model_call: str
    position: int  # of the call in the reply, from 0
    dispatch: str  # event id of the ToolDispatchStarted it answers
    source: str  # who says so: the executor's name for inline tools
    nonce: str = ""  # of the claim, where there is one
    outcome: str  # succeeded or failed
    output: str  # what the model sees: whole, or head and tail with the size said
    output_ref: BlobRef | None = None  # the whole output, when it was cut
    output_bytes: int = 0  # size of the whole output in UTF-8
    exit_code: int | None = None
    duration_ms: int = 0


@event
class ToolClaimed:
    """A process is about to start the effect of a dispatch. The first claim in the log wins; no other may start."""

    model_call: str
    position: int
    dispatch: str
    nonce: str  # of the process, random
    process: str  # where it runs: host and process, or pod


@event
class ToolFenced:
    """A second process was refused the same dispatch: it did nothing."""

    model_call: str
    position: int
    dispatch: str
    nonce: str  # of the one that was refused
    process: str


@event
class LateReportRecorded:
    """A report for a call that was closed already: kept and shown, never acted on."""

    model_call: str
    position: int
    dispatch: str
    report: str  # event id of the ToolReported


@event
class MessageReceived:
    """Somebody said something to the run; it waits in the mailbox."""

    command_id: str
    text: str = ""
    parts: str | None = None  # content parts as JSON text, instead of the text
    ref: BlobRef | None = None  # the content, when too large to stand here; parts if `parts` is [], else text
    sender: str = ""


@event
class CloseRequested:
    """No more messages will come: an interactive run ends once it has answered those before this."""

    command_id: str
    sender: str = ""


@event
class CancelRequested:
    """The run is to stop at the next boundary."""

    command_id: str
    reason: str = ""
    sender: str = ""


@event
class PauseRequested:
    """The run is to start nothing new until it is resumed."""

    command_id: str
    sender: str = ""


@event
class ResumeRequested:
    """A paused run goes on."""

    command_id: str
    sender: str = ""


@event
class ApprovalDecided:
    """A person said yes or no to one call. Counts only for the ApprovalRequired and the arguments it names."""

    command_id: str
    approval: str  # event id of the ApprovalRequired
    arguments_sha256: str  # of the arguments the person was shown
    approved: bool
    reason: str = ""
    sender: str = ""


@event
class QuestionAnswered:
    """A person answered a call that asks one. The answer is the call's result."""

    command_id: str
    model_call: str
    position: int
    text: str
    sender: str = ""


@event
class ChildCompleted:
    """A delegated task ended. Its outcome is the result of the call that asked for it."""

    child: str  # its task id
    status: str
    kind: str = ""
    reason: str = ""
    result: str | None = None  # cut where it is too large to stand here
    totals: Totals


@event
class UnparkRequested:
    """A parked run is to be taken up again."""

    command_id: str
    mode: str  # retry, or skip the records that could not be folded
    sender: str = ""


@event
class PartitionOpened:
    """A new owner read this partition to its end: its first *now*. Belongs to the partition, not to a run."""

    owner: str


@event
class RunLost:
    """The beginning of this run is no longer in the log; an operator accepted the loss."""

    reason: str


# ---- decisions


@event
class ContextLoaded:
    """The agent as this run will use it to its end."""

    agent: str
    version: str  # digest of instructions, model, tools
    model: str
    instructions: str
    tools: list[ToolSpec]
    limits: dict[str, int]  # every limit in force, by name


@event
class PhaseEntered:
    """A phase transition that no other decision makes."""

    phase: str
    turn: int


@event
class ModelCallStarted:
    """A model call is in flight. Refers to the transcript, never repeats it."""

    turn: int  # from 1
    attempt: int  # from 1 in each turn
    model: str
    prompt_digest: str  # rolling sha256 over instructions and transcript
    transcript_length: int  # in entries, after the messages were taken
    messages: list[str]  # command ids taken from the mailbox, in order
    last_turn: str = ""  # the limit that was reached: the run says what was done so far, without tools, and ends


@event
class ApprovalRequired:
    """A person must say yes before this call starts."""

    model_call: str
    position: int
    reason: str
    arguments_sha256: str  # of the arguments that are shown, and that will run
    time_limit_ms: int  # then the answer is no, recorded as expired


@event
class ToolDispatchStarted:
    """The promise to start a tool, recorded before it is started."""

    model_call: str
    position: int
    attempt: int  # from 1
    arguments_sha256: str  # of the arguments that were checked
    tool: str
    tool_class: str
    time_limit_ms: int
    idempotency_key: str  # the same for every attempt of this call


@event
class ToolSettled:
    """An outcome made from state and time, not by the tool."""

    model_call: str
    position: int
    outcome: str  # timed_out, interrupted, cancelled, over_limit, invalid_arguments and others
    message: str  # what the model is told


@event
class SandboxReplaced:
    """The run's workspace was lost; from here on it is this one, which begins empty."""

    sandbox: str  # where it is, as in ToolClaimed.process
    calls: int  # that changed the lost one, and are to be repeated


@event
class ReplayStarted:
    """A call that changed the lost workspace is about to be repeated. Claimed and reported under this event's id."""

    sandbox: str
    model_call: str  # of the call that is repeated
    position: int
    number: int  # from 1
    time_limit_ms: int


@event
class SandboxReady:
    """The workspace is as far restored as it can be; the model is told how far."""

    sandbox: str
    restored: int
    message: str


@event
class TurnAdvanced:
    """All calls of the reply are closed; their results join the transcript in call order."""

    model_call: str
    turn: int
    calls: list[int]  # positions


@event
class RunFailed:
    """An unhandled fault, as data. Failure reporting follows."""

    kind: str
    message: str
    phase: str  # in which it happened


@event
class RunFinished:
    """Terminal state. The result is the text of the reply it names, never a copy."""

    status: str  # completed, failed, cancelled, timed_out, limit_exceeded or rejected
    kind: str = ""  # machine-readable reason; empty for a plain completion
    reason: str = ""  # for people: which limit, what went wrong, what was done so far
    result_of: str | None = None  # model call whose reply holds the result
    totals: Totals


@event
class TaskReported:
    """TaskCompleted was acknowledged by Kafka. Nothing follows."""

    completion: str  # event id of the TaskCompleted


@event
class RunCheckpointed:
    """The folded state, carried forward in the log, in parts."""

    part: int  # from 1
    parts: int
    as_of_offset: int  # the state is that before this offset
    state: bytes


@event
class RunParked:
    """Set aside: this run goes no further until it is unparked."""

    reason: str
    base_offset: int  # reading from here rebuilds the run
    bad_offset: int = -1  # the record that could not be folded; -1 if none


@event
class RunUnparked:
    """Taken up again; every reader skips the named records."""

    skipped: list[int]  # offsets


# ---- the other topics


@event
class TaskRequested:
    """The way in: one task for an agent."""

    task_id: str
    agent: str = ""
    definition: str | None = None
    input: str = ""
    input_parts: str | None = None
    interactive: bool = False
    result_schema: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    not_before_ms: int | None = None
    expires_at_ms: int | None = None
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    parent: str | None = None
    depth: int = 0


@event
class TaskCancelled:
    """Whoever asked no longer wants the task done."""

    task_id: str
    reason: str = ""


@event
class TaskCompleted:
    """The way out: exactly one truth per task, delivered at least once under one `ce_id`."""

    task_id: str
    status: str
    kind: str = ""
    reason: str = ""
    result: str | None = None  # the answer, for status completed; else the last text there was, or null
    refusal: bool = False  # the model refused: the result is its refusal
    finish_reason: str = ""  # of the answer; length means that it was cut off
    totals: Totals
    labels: dict[str, str] = field(default_factory=dict)
    parent: str | None = None
    request_digest: str = ""
    finished_at_ms: int = 0


@event
class ModelTextDelta:
    """A piece of a model's text, as it comes. For eyes only."""

    model_call: str
    offset: int  # in characters, from the start of this call's text
    text: str


@event
class ToolOutputChunk:
    """A piece of what a running tool prints, as it comes. For eyes only."""

    dispatch: str
    nonce: str
    stream: str  # stdout or stderr
    offset: int  # in bytes, from the start of this stream
    text: str


@event
class Quarantined:
    """A record that could not be used, with its place and the reason."""

    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes | None = None
    value: bytes | None = None
    headers: dict[str, bytes] = field(default_factory=dict)


FACTS = (
    RunRequested, ModelReplied, ModelFailed, ToolClaimed, ToolFenced, ToolReported, LateReportRecorded, MessageReceived,
    CloseRequested, CancelRequested, PauseRequested, ResumeRequested, ApprovalDecided, QuestionAnswered, ChildCompleted,
    UnparkRequested, PartitionOpened, RunLost,
)  # fmt: skip
DECISIONS = (
    ContextLoaded, PhaseEntered, ModelCallStarted, ApprovalRequired, ToolDispatchStarted, ToolSettled, SandboxReplaced,
    ReplayStarted, SandboxReady, TurnAdvanced, RunFailed, RunFinished, TaskReported, RunCheckpointed, RunParked, RunUnparked,
)  # fmt: skip
OTHERS = (TaskRequested, TaskCancelled, TaskCompleted, ModelTextDelta, ToolOutputChunk, Quarantined)

Fact = (
    RunRequested | ModelReplied | ModelFailed | ToolClaimed | ToolFenced | ToolReported | LateReportRecorded
    | MessageReceived | CloseRequested | CancelRequested | PauseRequested | ResumeRequested | ApprovalDecided
    | QuestionAnswered | ChildCompleted | UnparkRequested | PartitionOpened | RunLost
)  # fmt: skip
Decision = (
    ContextLoaded | PhaseEntered | ModelCallStarted | ApprovalRequired | ToolDispatchStarted | ToolSettled
    | SandboxReplaced | ReplayStarted | SandboxReady | TurnAdvanced | RunFailed | RunFinished | TaskReported | RunCheckpointed | RunParked | RunUnparked
)  # fmt: skip
Event = Fact | Decision | TaskRequested | TaskCancelled | TaskCompleted | ModelTextDelta | ToolOutputChunk | Quarantined
