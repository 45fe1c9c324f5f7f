"""Every limit of a run: its name on the wire, its default, its unit and its reason. All of them in this file.

A task may set any of the per-run limits by name (`limits` of TaskRequested). Times are durations in milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

HOUR_MS = 3_600_000


@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    tool_ms: int = 120_000  # one tool call; a tool may declare its own
    model_attempt_ms: int = 300_000  # one attempt of a model call, by our own clock
    model_attempts: int = 10  # attempts of one turn; the turn's time limit usually comes first
    turn_ms: int = 600_000  # a model call with its attempts and backoffs, and its tools
    run_ms: int = HOUR_MS  # the sum of the turns
    idle_ms: int = 1_800_000  # an interactive run without a message
    approval_ms: int = 300_000  # a person's yes to one call; then the answer is no, as expired
    question_ms: int = 1_800_000  # a person's answer
    external_ms: int = HOUR_MS  # a call that somebody else carries out and reports
    child_ms: int = 7 * 24 * HOUR_MS  # a delegated task: its own limits end it long before
    pause_ms: int = 7 * 24 * HOUR_MS  # then a paused run is cancelled
    last_turn_ms: int = 60_000  # the last turn of a run over a limit, in which it says what was done so far
    tool_calls: int = 100  # started calls of a run: more is a loop
    tokens: int = 1_000_000  # charged tokens of a run; a call in flight may overshoot
    last_turn_tokens: int = 2_000  # output of the last turn, beyond the limit: 0 means no such turn
    children: int = 20  # delegations of a run
    depth: int = 4  # delegations inside each other
    tools_in_flight: int = 8  # calls of one run that run at once
    empty_replies: int = 2  # re-asks after replies with neither text nor call
    cut_replies: int = 3  # replies in a row that were cut off inside their calls


LIMIT_NAMES = frozenset(field.name for field in fields(Limits))
MAY_BE_ZERO = frozenset({"tool_calls", "empty_replies", "cut_replies", "last_turn_tokens", "children", "depth"})

# Bounds of the engine, the same for every run.
INLINE_BYTES_MAX = 256 * 1024  # a payload above this goes to the blob store: a thousand events stay some tens of MB
RECORD_BYTES_MAX = 900 * 1024  # librdkafka and brokers refuse 1,000,000 bytes by default; headers need room too
REQUEST_BYTES_MAX = 4 * 1024 * 1024  # one record of task-requests
MESSAGES_TAKEN_MAX = 256  # messages one model call takes: keeps ModelCallStarted small
REASON_CHARS_MAX = 4_000  # texts that we write ourselves: a decision must always fit
BACKOFF_FIRST_MS = 500
BACKOFF_MAX_MS = 30_000


def limits_from(given: Mapping[str, int]) -> Limits:
    """The limits with these overrides. Unknown names are ignored here: `limit_problem` refuses them at the door."""
    return Limits(**{name: value for name, value in given.items() if name in LIMIT_NAMES})


def limit_problem(given: Mapping[str, int]) -> str | None:
    """What is wrong with a task's limits, or None."""
    for name, value in given.items():
        if name not in LIMIT_NAMES:
            return f"unknown limit {name!r}; known are {', '.join(sorted(LIMIT_NAMES))}"
        if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
            return f"limit {name!r} must be positive, not {value}"
    return None


def shortened(text: str, chars_max: int = REASON_CHARS_MAX) -> str:
    """A text of ours, cut so that the record that carries it always fits."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
