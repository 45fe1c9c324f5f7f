"""What goes over HTTP, as types: bodies are checked by them, answers made of them, the OpenAPI document described by them."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from runfold.core.limits import REASON_CHARS_MAX
from runfold.intake.requests import TASK_ID_CHARS_MAX, TIME_MS_MAX

LONG_MAX = (1 << 63) - 1  # of Avro
INT_MAX = (1 << 31) - 1


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must hold printable characters only")
    return text


Id = Annotated[str, Field(min_length=1, max_length=TASK_ID_CHARS_MAX), AfterValidator(_printable)]
Name = Annotated[str, Field(max_length=TASK_ID_CHARS_MAX), AfterValidator(_printable)]
Reason = Annotated[str, Field(max_length=REASON_CHARS_MAX)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Body(BaseModel):
    """What a client sends. A misspelt field is an error, not a wish that nobody hears."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# ---- bodies


class Task(Body):
    """A task for an agent: name a configured agent, or give a definition of one."""

    task_id: Id | None = Field(default=None, description="yours: the same id with the same body starts nothing new")
    agent: str = ""
    definition: dict[str, Any] | None = Field(
        default=None, description="inline agent: model, instructions, tools, limits"
    )
    input: str = ""
    input_parts: list[dict[str, Any]] | None = Field(default=None, description="content parts, instead of input")
    interactive: bool = Field(default=False, description="waits for further messages after each answer")
    result_schema: dict[str, Any] | None = Field(default=None, description="JSON Schema of the result")
    limits: dict[str, Annotated[int, Field(ge=-LONG_MAX, le=LONG_MAX)]] = {}
    not_before_ms: int | None = Field(default=None, ge=0, le=TIME_MS_MAX, description="since 1970")
    expires_at_ms: int | None = Field(default=None, ge=0, le=TIME_MS_MAX, description="since 1970")
    priority: int = Field(default=0, ge=-INT_MAX, le=INT_MAX)
    labels: dict[str, str] = {}


class CommandBody(Body):
    command_id: Id | None = Field(default=None, description="yours: the same id twice has one effect and one answer")
    sender: Name = Field(default="", description="who says so; shown to others")


class MessageBody(CommandBody):
    text: str = ""
    parts: list[dict[str, Any]] | None = Field(default=None, description="content parts, instead of text")


class AnswerBody(CommandBody):
    """The answer to a call that asks a person; `model_call` and `position` name it."""

    model_call: Id
    position: int = Field(ge=0, le=INT_MAX)
    text: str


class ApprovalBody(CommandBody):
    """Names the approval and the arguments that were shown: what runs is exactly that."""

    approval: Id
    arguments_sha256: Sha256
    reason: Reason = ""


class CancelBody(CommandBody):
    reason: Reason = ""


class ReportBody(Body):
    """The outcome of a call of an external tool."""

    outcome: Literal["succeeded", "failed"]
    output: str
    exit_code: int | None = Field(default=None, ge=-INT_MAX, le=INT_MAX)
    duration_ms: int = Field(default=0, ge=0, le=LONG_MAX)


# ---- answers


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class Problem(Answer):
    """RFC 9457, as application/problem+json."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = Field(description="what is wrong, and what to do about it")
    command_id: str | None = None


class Totals(Answer):
    turns: int = 0
    model_calls: int = 0
    model_failures: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tokens_estimated: bool = False
    active_ms: int = 0


class Completion(Answer):
    """TaskCompleted, as it stands on task-completions."""

    task_id: str
    status: str
    kind: str = ""
    reason: str = ""
    result: str | None = None
    refusal: bool = False
    finish_reason: str = ""
    totals: Totals
    labels: dict[str, str] = {}
    parent: str | None = None
    request_digest: str = ""
    finished_at_ms: int = 0


class Submitted(Answer):
    task_id: str
    run_id: str
    request_digest: str
    completion: Completion | None = Field(default=None, description="if it was waited for, and came in time")


class NotYet(Answer):
    run_id: str
    status: str


class AsOf(Answer):
    """Everything in the log before this offset is in the answer."""

    partition: int
    offset: int


class OpenCall(Answer):
    model_call: str
    position: int
    tool: str
    tool_class: str = ""
    arguments: str
    arguments_sha256: str
    waits_for: str = Field(description="tool, external, person, child, time, approval, or turn: others go first")
    dispatch: str | None = None
    dispatched_at_ms: int | None = None
    due_at_ms: int | None = Field(default=None, description="then it is settled without its outcome")
    claimed_by: str | None = None
    child: str | None = None


class OpenApproval(Answer):
    approval: str
    model_call: str
    position: int
    tool: str
    arguments: str
    arguments_sha256: str
    reason: str
    asked_at_ms: int
    expires_at_ms: int


class Child(Answer):
    run_id: str
    status: str = Field(description="asked for, or the status it ended with")


class Waiting(Answer):
    """A message that the model has not seen yet."""

    command_id: str
    sender: str


class Run(Answer):
    """A run as the log shows it."""

    run_id: str
    status: str
    phase: str
    turn: int
    agent: str
    model: str
    interactive: bool
    is_closed: bool
    is_cancelled: bool = Field(description="asked to stop; it ends at the next boundary")
    requested_at_ms: int
    finished_at_ms: int | None = None
    kind: str = ""
    reason: str = Field(default="", description="why it ended as it did, or why it is set aside")
    totals: Totals
    open_calls: list[OpenCall] = []
    open_approvals: list[OpenApproval] = []
    mailbox: list[Waiting] = []
    children: list[Child] = []
    parent: str | None = None
    labels: dict[str, str] = {}
    as_of: AsOf


class Accepted(Answer):
    """The command counted."""

    run_id: str
    command_id: str
    status: str = Field(description="of the run, at the command's place in the log")
    as_of: AsOf


class Token(Answer):
    dispatch: str
    token: str = Field(description="good for one report of this dispatch")


class Health(Answer):
    status: str
    detail: str = ""
    runs_active: int = 0
    runs_ended: int = 0
    records_skipped: int = Field(default=0, description="records that could not be read")


class PhaseSeen(Answer):
    phase: str
    turn: int
    at_ms: int


class Started(Answer):
    dispatch: str
    attempt: int
    at_ms: int


class LateReport(Answer):
    dispatch: str
    source: str
    outcome: str
    output: str
    at_ms: int


class CallRow(Answer):
    """A call and its result in one row."""

    position: int
    tool: str
    arguments: str
    outcome: str | None = Field(default=None, description="null: open")
    output: str | None = None
    output_bytes: int | None = Field(default=None, description="of the whole output, where it was cut")
    output_sha256: str | None = Field(default=None, description="of the whole output in the blob store")
    closed_by: str | None = Field(default=None, description="tool, runfold, a child, or the person who answered")
    closed_at_ms: int | None = None
    waits_for: str | None = None
    starts: list[Started] = []
    approval: str | None = None
    approved: bool | None = None
    decided_by: str | None = None
    child: str | None = None
    late_reports: list[LateReport] = []


class Entry(Answer):
    """One entry of the transcript: what a person said, or a reply of the model with its calls."""

    kind: Literal["message", "reply"]
    at_ms: int
    offset: int
    text: str = ""
    parts: list[dict[str, Any]] | None = None
    blob: str | None = Field(default=None, description="sha256 of a content too large to stand here")
    sender: str = ""
    model_call: str | None = None
    turn: int = 0
    reasoning: str = ""
    refusal: str = ""
    model: str = ""
    finish_reason: str = ""
    calls: list[CallRow] = []


class Transcript(Answer):
    run_id: str
    status: str
    entries: list[Entry]
    phases: list[PhaseSeen]
    failures: list[str] = Field(default=[], description="model calls that failed, in order")
    children: list[Child] = []
    as_of: AsOf
