"""Tools in the executor's own process: each call has one outcome, whatever the tool does; nothing waits for a thread."""

import enum
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

import pytest
from pydantic import BaseModel

from runfold.adapters.blobs import MemoryBlobs
from runfold.adapters.inline_tools import InlineTools
from runfold.adapters.toolbox import Tool, Toolbox, ToolContext, tool
from runfold.core.limits import INLINE_BYTES_MAX
from runfold.events.types import BlobRef, ToolReported
from runfold.ports import Blobs, Permanent, ToolStart, Transient

PATIENCE_S = 20.0  # for a thread on a busy machine; nothing waits that long


class Place(BaseModel):
    name: str
    size: float = 1.0


@dataclass
class Point:
    x: int


class Color(enum.StrEnum):
    RED = "red"


def asked(name: str, arguments: str = "{}", dispatch: str = "d1") -> ToolStart:
    return ToolStart(
        run_id="run", model_call="m", position=3, dispatch=dispatch, attempt=2, tool=name, arguments=arguments, time_limit_s=1,
        idempotency_key="key",
    )  # fmt: skip


def ran(function: Callable[..., Any], arguments: str = "{}", **options: Any) -> ToolReported:
    """The report of an immediate call."""
    made = tool(name="t", immediate=True)(function)
    tools = InlineTools(Toolbox([made]), options.pop("blobs", MemoryBlobs()), "here", **options)
    report = tools.start(asked("t", arguments), _never)
    assert report is not None
    return report


def _never(report: ToolReported) -> None:
    raise AssertionError(f"an immediate tool reported twice: {report}")


class Threaded:
    """Tools in threads, and the reports as they come."""

    def __init__(self, *tools: Tool, threads: int = 4) -> None:
        self.reports: SimpleQueue[ToolReported] = SimpleQueue()
        self.tools = InlineTools(Toolbox(tools), MemoryBlobs(), "here", threads=threads)

    def start(self, name: str, arguments: str = "{}", dispatch: str = "d1") -> None:
        assert self.tools.start(asked(name, arguments, dispatch), self.reports.put) is None

    def next(self) -> ToolReported:
        return self.reports.get(timeout=PATIENCE_S)


# ---- what comes back


def test_a_report_names_the_call_it_answers() -> None:
    """By model call, position and dispatch, and says who ran it and for how long."""
    report = ran(lambda: "done")
    assert (report.model_call, report.position, report.dispatch, report.source) == ("m", 3, "d1", "here")
    assert (report.outcome, report.output, report.output_bytes, report.output_ref) == ("succeeded", "done", 4, None)
    assert report.duration_ms >= 0


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("as it is", "as it is"),
        (None, ""),
        (b"a\xffb", "a\N{REPLACEMENT CHARACTER}b"),
        ({"a": [1, "é", None]}, '{"a":[1,"é",null]}'),
        (Place(name="Bonn"), '{"name":"Bonn","size":1.0}'),
        (Point(1), '{"x":1}'),
        ([Point(1), Place(name="Bonn")], '[{"x":1},{"name":"Bonn","size":1.0}]'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC), "in": {1}}, '{"at":"2026-01-02T00:00:00Z","in":[1]}'),
        (Color.RED, "red"),
        ((1, True), "[1,true]"),
        ("\ud800\0", "\N{REPLACEMENT CHARACTER}" * 2),
    ],
    ids=repr,
)
def test_what_a_tool_returns_becomes_text_for_the_model(value: object, output: str) -> None:
    """Text stays text; anything else is compact JSON, at any depth."""
    report = ran(lambda: value)
    assert (report.outcome, report.output) == ("succeeded", output)
    report.output.encode()


@pytest.mark.requirement("R17")
@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], object(), {(1, 2): 3}, Place(name="x", size=float("nan"))], ids=repr
)
def test_a_result_that_json_cannot_hold_is_a_failure_that_says_the_tool_ran(value: object) -> None:
    """The model must not take it for a call that never happened."""
    report = ran(lambda: value)
    assert report.outcome == "failed"
    assert report.output.startswith("ValueError: the tool ran, but its result cannot be shown: ")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.requirement("R17")
@pytest.mark.parametrize(
    ("error", "output"),
    [
        (LookupError("no such town"), "LookupError: no such town"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("\ud800"), "ValueError: \N{REPLACEMENT CHARACTER}"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("immediate", [True, False])
def test_whatever_a_tool_raises_is_its_outcome(error: BaseException, output: str, immediate: bool) -> None:
    """Even what would end the process; without a traceback, which is not the model's to see."""

    def bad() -> None:
        raise error

    if immediate:
        report = ran(bad)
    else:
        world = Threaded(tool(bad))
        world.start("bad")
        report = world.next()
    assert (report.outcome, report.output) == ("failed", output)


@pytest.mark.requirement("R17")
def test_a_tool_that_is_no_longer_deployed_is_a_failure_of_the_call() -> None:
    """The run goes on: its tools were fixed when it began."""
    report = InlineTools(Toolbox([]), MemoryBlobs(), "here").start(asked("gone"), _never)
    assert report is not None
    assert (report.outcome, report.output) == ("failed", "The tool 'gone' is not deployed here any more.")


@pytest.mark.requirement("R17")
def test_arguments_that_no_longer_fit_the_function_are_a_failure_of_the_call() -> None:
    """It was deployed anew, with other parameters, since the run began."""

    def visit(place: Place) -> str:
        return place.name

    assert ran(visit, '{"place": {"name": "Bonn"}}').output == "Bonn"
    assert ran(visit, '{"place": {}}').output == "ValueError: the arguments do not fit: place.name: Field required"
    assert ran(lambda: "", '{"x": 1}').output.startswith("TypeError: ")


# ---- what a tool is given


@pytest.mark.requirement("R13")
def test_a_tool_may_ask_for_its_context() -> None:
    """The idempotency key is the same for every attempt of the call."""

    def who(city: str, context: ToolContext) -> list[object]:
        return [city, context.run_id, context.dispatch, context.attempt, context.idempotency_key]

    assert json.loads(ran(who, '{"city": "Bonn"}').output) == ["Bonn", "run", "d1", 2, "key"]


def test_a_tool_with_a_schema_of_its_own_gets_the_arguments_as_one_dict() -> None:
    """As replayed recordings do."""
    replay = Tool(
        name="replay",
        description="",
        parameters={"type": "object"},
        function=sorted,
        takes_dict=True,
        immediate=True,
    )
    report = InlineTools(Toolbox([replay]), MemoryBlobs(), "here").start(asked("replay", '{"b":1,"a":2}'), _never)
    assert report is not None
    assert report.output == '["a","b"]'


def test_a_coroutine_function_runs_in_a_loop_of_its_own() -> None:
    """Whoever has an asynchronous client need not wrap it."""

    async def fetch(url: str) -> str:
        return f"got {url}"

    world = Threaded(tool(fetch))
    world.start("fetch", '{"url": "x"}')
    assert world.next().output == "got x"


# ---- large outputs


@pytest.mark.requirement("R20")
def test_a_large_output_is_kept_whole_and_shown_at_both_ends() -> None:
    """Stored before the report that names it exists."""
    blobs = MemoryBlobs()
    whole = "first " + "ä" * 100_000 + " last"
    report = ran(lambda: whole, blobs=blobs)
    assert report.outcome == "succeeded"
    assert report.output.startswith("first ä")
    assert report.output.endswith("ä last")
    assert "200,011 bytes" in report.output
    assert len(report.output.encode()) <= 64 * 1024
    assert report.output_bytes == 200_011
    assert report.output_ref is not None
    assert blobs.get(report.output_ref) == whole.encode()


@pytest.mark.requirement("R20")
@pytest.mark.parametrize(("letter", "fits"), [("x", 1_000), ("ä", 500), ("😀", 250)])
def test_the_limit_counts_bytes(letter: str, fits: int) -> None:
    """What just fits is shown whole, and not stored; one character more is cut."""
    assert ran(lambda: letter * fits, output_bytes_max=1_000).output_ref is None
    cut = ran(lambda: letter * (fits + 1), output_bytes_max=1_000)
    assert cut.output_ref is not None
    assert len(cut.output.encode()) <= 1_000


@pytest.mark.requirement("R20")
@pytest.mark.requirement("R17")
def test_a_large_failure_is_cut_too() -> None:
    """Errors are outputs."""

    def bad() -> None:
        raise ValueError("x" * 100_000)

    report = ran(bad)
    assert report.outcome == "failed"
    assert report.output_ref is not None
    assert len(report.output) <= 64 * 1024


class FullDisk:
    """A blob store that has no room."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def put(self, payload: bytes) -> BlobRef:
        raise self.error

    def get(self, ref: BlobRef) -> bytes:
        raise LookupError


@pytest.mark.parametrize(
    "error", [OSError("no space left"), Transient("no space left"), Permanent("no space left" * 99)]
)
def test_an_output_that_cannot_be_kept_is_still_an_outcome(error: Exception) -> None:
    """The tool had its effect; the model is told what there is, and that the rest is gone."""
    store: Blobs = FullDisk(error)
    report = ran(lambda: "x" * 5_000, blobs=store, output_bytes_max=1_000)
    assert report.outcome == "succeeded"
    assert report.output_ref is None
    assert "[the whole could not be kept: no space left" in report.output
    assert len(report.output.encode()) <= 1_000
    assert report.output_bytes == 5_000


@pytest.mark.parametrize("output_bytes_max", [0, -1, INLINE_BYTES_MAX + 1])
def test_a_limit_that_no_record_could_hold_is_refused(output_bytes_max: int) -> None:
    """At the start."""
    with pytest.raises(Permanent, match="output_bytes_max"):
        InlineTools(Toolbox([]), MemoryBlobs(), "here", output_bytes_max=output_bytes_max)


# ---- threads


class Gate:
    """A tool that waits until it is let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered: SimpleQueue[str] = SimpleQueue()

    def tool(self) -> Tool:
        def gate(context: ToolContext) -> str:
            """Waits."""
            self.entered.put(context.dispatch)
            self.open.wait(PATIENCE_S)
            return "cancelled" if context.cancelled.is_set() else "through"

        return tool(gate)


def test_immediate_tools_run_on_the_caller_s_thread_and_others_do_not() -> None:
    """The one saves a hand-over, the other cannot hold up the loop."""
    assert ran(lambda: threading.current_thread().name).output == threading.current_thread().name
    world = Threaded(tool(name="t")(lambda: threading.current_thread().name))
    world.start("t")
    assert world.next().output == "tool"


@pytest.mark.requirement("R15")
def test_calls_run_side_by_side_up_to_the_number_of_threads() -> None:
    """The fifth waits for one of the four."""
    gate = Gate()
    world = Threaded(gate.tool(), threads=4)
    for index in range(5):
        world.start("gate", dispatch=f"d{index}")
    entered = {gate.entered.get(timeout=PATIENCE_S) for _ in range(4)}
    assert entered == {"d0", "d1", "d2", "d3"}
    assert gate.entered.empty()
    gate.open.set()
    assert {world.next().dispatch for _ in range(5)} == {f"d{index}" for index in range(5)}
    assert world.reports.empty()


@pytest.mark.requirement("R27")
def test_stop_keeps_a_waiting_call_from_beginning() -> None:
    """It never reports: its call is closed."""
    gate = Gate()
    world = Threaded(gate.tool(), threads=1)
    for dispatch in ("first", "second", "third"):
        world.start("gate", dispatch=dispatch)
    assert gate.entered.get(timeout=PATIENCE_S) == "first"
    world.tools.stop("second")
    gate.open.set()
    assert [world.next().dispatch, world.next().dispatch] == ["first", "third"]
    assert gate.entered.get(timeout=PATIENCE_S) == "third"
    assert gate.entered.empty()


@pytest.mark.requirement("R27")
def test_stop_tells_a_running_call_and_its_report_still_comes() -> None:
    """The report is late for the executor to see; stopping twice, or what is unknown, is nothing."""
    gate = Gate()
    world = Threaded(gate.tool())
    world.start("gate")
    gate.entered.get(timeout=PATIENCE_S)
    for dispatch in ("d1", "d1", "unknown"):
        world.tools.stop(dispatch)
    gate.open.set()
    assert world.next().output == "cancelled"


@pytest.mark.requirement("R16")
def test_tools_that_hang_do_not_take_the_threads_of_others() -> None:
    """A passed time limit does not stop a thread; the executor's next calls need one all the same."""
    hanging = Gate()
    world = Threaded(hanging.tool(), tool(name="quick")(lambda: "done"), threads=2)
    for dispatch in ("a", "b"):
        world.start("gate", dispatch=dispatch)
    world.start("quick", dispatch="c")  # waits behind the two
    for _ in range(2):
        hanging.entered.get(timeout=PATIENCE_S)
    world.tools.stop("a")
    assert world.next().dispatch == "c"
    hanging.open.set()
    assert {world.next().dispatch, world.next().dispatch} == {"a", "b"}
    for index in range(10):  # and the thread that came back is one too many, or not, but calls go on
        world.start("quick", dispatch=f"more-{index}")
    assert {world.next().dispatch for _ in range(10)} == {f"more-{index}" for index in range(10)}


def test_every_call_of_many_reports_once() -> None:
    """From as many threads as there are."""
    world = Threaded(tool(name="t")(_echo), threads=8)
    for index in range(500):
        world.start("t", f'{{"n": {index}}}', dispatch=f"d{index}")
    assert sorted(int(world.next().output) for _ in range(500)) == list(range(500))
    assert world.reports.empty()


def _echo(n: int) -> int:
    return n


def test_close_begins_nothing_more_and_waits_for_nobody() -> None:
    """What had not begun is undecided: the next owner of the run sees that it never reported."""
    gate = Gate()
    world = Threaded(gate.tool(), threads=1)
    world.start("gate", dispatch="running")
    world.start("gate", dispatch="waiting")
    gate.entered.get(timeout=PATIENCE_S)
    world.tools.close()
    world.start("gate", dispatch="after")
    gate.open.set()
    report = world.next()
    assert (report.dispatch, report.output) == ("running", "cancelled")
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "tool")
    assert gate.entered.empty()
