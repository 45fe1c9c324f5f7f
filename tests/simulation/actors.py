"""Whatever surrounds the executors of a simulated world: clock, models, tools, catalog. All of it decided by one `Random`."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Protocol

from runfold.core.limits import Limits
from runfold.events.types import (
    ContextLoaded,
    Item,
    ModelFailed,
    ModelReplied,
    RunRequested,
    ToolReported,
    ToolSpec,
    Usage,
)
from runfold.ports import ModelOutcome, ModelRequest, ToolStart

TOOL_LIMIT_MS = 5_000
LIMITS = Limits(
    model_attempt_ms=3_000,
    turn_ms=60_000,
    idle_ms=30_000,
    tools_in_flight=2,
    model_attempts=4,
    approval_ms=20_000,
    question_ms=20_000,
    child_ms=90_000,
    pause_ms=400_000,
    children=2,
    depth=1,
)
LIMIT_NAMES = asdict(LIMITS)


def _tool(name: str, **how: Any) -> ToolSpec:
    given = {"changes_state": False, "tool_class": "inline", "time_limit_ms": TOOL_LIMIT_MS, **how}
    return ToolSpec(name=name, description="", parameters="{}", **given)


TOOLS = [
    _tool("read"),
    _tool("write", changes_state=True),
    _tool("put", idempotent=True),
    _tool("wait", resumable=True),
    _tool("run", tool_class="process", changes_state=True),
    _tool("edit", tool_class="process", changes_state=True, workspace=True),
    _tool("edit", tool_class="process", changes_state=True, workspace=True),
    _tool("pay", approval="always"),
    _tool("ask", waits_for="person", time_limit_ms=0),
    _tool("sleep", waits_for="time", time_limit_ms=0),
    _tool("delegate", waits_for="child", time_limit_ms=0),
]
ARGUMENTS = {"sleep": '{"seconds": 4}', "delegate": '{"task": "help"}', "read": '{"n": 7}'}
CALLED = [tool.name for tool in TOOLS] + ["edit"] * 3 + ["pay"] * 3
REPEATABLE = frozenset({"put", "wait"})
CONTEXT = ContextLoaded(
    agent="agent", version="1", model="simulated", instructions="Be brief.", tools=TOOLS, limits=LIMIT_NAMES
)


class Killed(BaseException):
    """The process died inside a call to the world. Not an Exception: nobody may catch it and go on."""


class Watcher(Protocol):
    """Who is told of every effect at the moment it happens."""

    def model_asked(self, process: Any, request: ModelRequest) -> None: ...

    def tool_started(self, process: Any, start: ToolStart) -> None: ...

    def workspace_used(self, start: ToolStart, disk: list[tuple[str, int]]) -> None: ...


@dataclass
class SimulatedClock:
    """Monotonic time for processes; the broker's stamps, which may run behind for a while."""

    now_ms: int = 0
    broker_behind_ms: int = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def broker_ms(self) -> int:
        return 1_000_000 + self.now_ms - self.broker_behind_ms


class SimulatedCatalog:
    """One agent with four tools."""

    def context(self, task: RunRequested) -> ContextLoaded | str:
        return "there is no such agent" if task.agent == "nobody" else CONTEXT

    def argument_problem(self, tool: ToolSpec, arguments: dict[str, Any]) -> str | None:
        return "`wrong` is not allowed" if "wrong" in arguments else None


@dataclass
class SimulatedModel:
    """Answers at once, later or never. What it says follows from the seed; it tires of tools after some turns."""

    rng: Random
    process: Any
    watcher: Watcher
    is_calm: Callable[[], bool]
    waiting: dict[str, tuple[ModelRequest, Callable[[ModelOutcome], None]]] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)  # model calls whose outcome was handed over

    def start(
        self, request: ModelRequest, done: Callable[[ModelOutcome], None], delta: Callable[[int, str], None]
    ) -> ModelOutcome | None:
        self.watcher.model_asked(self.process, request)
        if not self.is_calm() and self.rng.random() < 0.01:
            raise Killed
        if self.rng.random() < 0.4:
            self.answered.append(request.call)
            return self.outcome(request)
        self.waiting[request.call] = (request, done)
        return None

    def stop(self, call: str) -> None:
        self.waiting.pop(call, None)

    def answer(self, call: str) -> None:
        request, done = self.waiting.pop(call)
        self.answered.append(call)
        done(self.outcome(request))

    def outcome(self, request: ModelRequest) -> ModelOutcome:
        rng, call = self.rng, request.call
        dice = 1.0 if self.is_calm() else rng.random()
        if dice < 0.07:
            wait_ms = rng.choice((None, 100, 2_000))
            return ModelFailed(
                model_call=call, kind="transient", message="busy", retryable=True, retry_after_ms=wait_ms
            )
        if dice < 0.085:
            return ModelFailed(model_call=call, kind="bad_request", message="no", retryable=False)
        if dice < 0.12:
            return ModelReplied(model_call=call, items=[], finish_reason="stop", usage=Usage(total_tokens=3))
        turns = sum(type(entry).__name__ == "Reply" for entry in request.transcript)
        if turns >= 4 or rng.random() < 0.15 + 0.1 * turns:
            text = f"answer {turns} to {call}"
            return ModelReplied(model_call=call, items=[Item(kind="text", text=text)], finish_reason="stop")
        items = [Item(kind="text", text="thinking " * rng.randrange(4))]
        items += [self._call() for _ in range(rng.choice((1, 1, 2, 2, 3)))]
        reason = "length" if dice < 0.16 else "tool_calls"
        return ModelReplied(model_call=call, items=items, finish_reason=reason, usage=Usage(total_tokens=10))

    def _call(self) -> Item:
        dice = self.rng.random()
        name = "invented" if dice < 0.04 else self.rng.choice(CALLED)
        arguments = "{broken" if 0.04 < dice < 0.08 else '{"wrong": 1}' if dice < 0.12 else ARGUMENTS.get(name, "{}")
        return Item(kind="call", name=name, arguments=arguments)


@dataclass
class SimulatedTools:
    """Reports at once, later, twice, or never."""

    rng: Random
    process: Any
    watcher: Watcher
    is_calm: Callable[[], bool]
    waiting: dict[str, tuple[ToolStart, Callable[[ToolReported], None]]] = field(default_factory=dict)
    reported: list[str] = field(default_factory=list)  # dispatches whose report was handed over

    def start(self, start: ToolStart, done: Callable[[ToolReported], None]) -> ToolReported | None:
        self.watcher.tool_started(self.process, start)
        if not self.is_calm() and self.rng.random() < 0.02:
            raise Killed
        if self.rng.random() < 0.3:
            self.reported.append(start.dispatch)
            return self._report(start)
        self.waiting[start.dispatch] = (start, done)
        return None

    def stop(self, dispatch: str) -> None:
        """The work goes on: stopping is a wish, and the report will be a late one."""

    def report(self, dispatch: str, *, again: bool = False) -> None:
        start, done = self.waiting[dispatch]
        if not again:
            del self.waiting[dispatch]
        self.reported.append(dispatch)
        done(self._report(start))

    def _report(self, start: ToolStart) -> ToolReported:
        digest = hashlib.sha256(start.dispatch.encode()).hexdigest()
        return ToolReported(
            model_call=start.model_call,
            position=start.position,
            dispatch=start.dispatch,
            source=self.process.name,
            nonce=start.nonce,
            outcome="failed" if digest < "2" else "succeeded",
            output=f"{start.tool} did {digest[:8]}",
        )


@dataclass
class Host:
    """A machine: what runs on it goes on when an executor dies, and may be adopted by the next one there."""

    name: str
    running: dict[str, str] = field(default_factory=dict)  # dispatch: nonce
    disks: dict[tuple[str, str], list[tuple[str, int]]] = field(default_factory=dict)  # run, token: what changed it
    made: int = 0


@dataclass
class SimulatedProcesses(SimulatedTools):
    """Tools behind a claim, on one of two machines."""

    host: Host = field(default_factory=lambda: Host(""))

    @property
    def identity(self) -> str:
        return self.host.name

    def has_workspace(self, run_id: str, sandbox: str) -> bool:
        host, _, token = sandbox.partition("#")
        return host == self.host.name and (run_id, token) in self.host.disks

    def new_workspace(self, run_id: str) -> str:
        self.host.made += 1
        token = str(self.host.made)
        self.host.disks[run_id, token] = []
        return f"{self.host.name}#{token}"

    def start(self, start: ToolStart, done: Callable[[ToolReported], None]) -> ToolReported | None:
        self.watcher.tool_started(self.process, start)
        self.host.running[start.dispatch] = start.nonce
        if start.tool == "edit":
            disk = self.host.disks.setdefault((start.run_id, start.sandbox.partition("#")[2]), [])
            self.watcher.workspace_used(start, disk)
            disk.append((start.model_call, start.position))
        if not self.is_calm() and self.rng.random() < 0.02:
            raise Killed
        self.waiting[start.dispatch] = (start, done)
        return None

    def adopt(self, start: ToolStart, process: str, done: Callable[[ToolReported], None]) -> bool:
        is_here = process == self.host.name and self.host.running.get(start.dispatch) == start.nonce
        if not is_here or (not self.is_calm() and self.rng.random() < 0.2):
            return False
        self.waiting[start.dispatch] = (start, done)
        return True

    def _report(self, start: ToolStart) -> ToolReported:
        """The same every time, as from a program that does not look at the clock; some do."""
        report = SimulatedTools._report(self, start)
        looks_at_clock = self.rng.random() < 0.05
        return report if looks_at_clock else replace(report, output=f"{start.tool} {start.idempotency_key[-6:]}")
