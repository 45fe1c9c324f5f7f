"""Runs tools of class `inline`: Python functions in the executor's own process.

A tool that is declared immediate answers on the spot. All others run in threads and report from there, each once. The
time limit is the executor's: a thread cannot be stopped, so a passed limit gives the model an outcome and the thread
goes on; its report is then late. `stop` keeps a call that has not begun from beginning (it then never reports), and
sets `ToolContext.cancelled` for one that has.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from pydantic import TypeAdapter

from runfold.adapters.toolbox import Tool, Toolbox, ToolContext
from runfold.adapters.truncation import head_and_tail
from runfold.core.limits import INLINE_BYTES_MAX, shortened
from runfold.events.text import decoded, sanitised
from runfold.events.types import BlobRef, ToolReported
from runfold.ports import Blobs, Permanent, ToolStart, Transient

# 64 KiB are some 16,000 tokens: more of one output rarely helps a model, and a hundred of them fill its context.
OUTPUT_BYTES_MAX = 64 * 1024
THREADS = 64  # calls of one process that run at once; each waits for something most of its time
STUCK_MAX = 256  # threads of stopped calls that have not come back, beside those: a stack and a descriptor or two each
ERROR_CHARS_MAX = 300  # of our own words about a blob store's failure

Done = Callable[[ToolReported], None]


@dataclass(slots=True, eq=False)
class _Work:
    """One call, from its start to its report."""

    tool: Tool
    start: ToolStart
    done: Done
    context: ToolContext
    begun: bool = False
    stopped: bool = False


class InlineTools:
    """`output_bytes_max`: what the model sees of an output; more is cut, and the whole is kept in the blob store."""

    def __init__(
        self,
        toolbox: Toolbox,
        blobs: Blobs,
        source: str,
        *,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
        threads: int = THREADS,
    ) -> None:
        if not 1 <= output_bytes_max <= INLINE_BYTES_MAX:
            raise Permanent(f"output_bytes_max is {output_bytes_max}; a record holds 1 to {INLINE_BYTES_MAX:,}")
        self._tools = toolbox.tools
        self._blobs = blobs
        self._source = source
        self._output_bytes_max = output_bytes_max
        self._pool = _Pool(threads, self._work)

    def start(self, start: ToolStart, done: Done) -> ToolReported | None:
        tool = self._tools.get(start.tool)
        if tool is None:  # it was there when the run began
            return self._report(start, "failed", f"The tool {start.tool!r} is not deployed here any more.", 0)
        if tool.immediate:
            return self._call(tool, start, _context(start, _NEVER) if tool.context_parameter else None)
        self._pool.add(_Work(tool, start, done, _context(start, threading.Event())))
        return None

    def stop(self, dispatch: str) -> None:
        self._pool.stop(dispatch)

    def close(self) -> None:
        """Begin nothing more. Calls that run are told, and not waited for: the process may end under them."""
        self._pool.close()

    def _work(self, work: _Work) -> None:
        work.done(self._call(work.tool, work.start, work.context))

    def _call(self, tool: Tool, start: ToolStart, context: ToolContext | None) -> ToolReported:
        began_ns = time.perf_counter_ns()
        try:
            value = _result(tool, start.arguments, context)
            outcome, output = "succeeded", value if type(value) is str else as_text(value)
        except BaseException as error:  # noqa: BLE001  whatever a tool raises, SystemExit too, is its outcome
            outcome, output = "failed", _said(error)
        return self._report(start, outcome, sanitised(output), (time.perf_counter_ns() - began_ns) // 1_000_000)

    def _report(self, start: ToolStart, outcome: str, output: str, duration_ms: int) -> ToolReported:
        size, ref = len(output), None
        if size > self._output_bytes_max or not output.isascii():
            whole = output.encode()
            size = len(whole)
            if size > self._output_bytes_max:
                output, ref = self._put_away(output, whole)
        return ToolReported(
            model_call=start.model_call,
            position=start.position,
            dispatch=start.dispatch,
            source=self._source,
            outcome=outcome,
            output=output,
            output_ref=ref,
            output_bytes=size,
            duration_ms=duration_ms,
        )

    def _put_away(self, output: str, whole: bytes) -> tuple[str, BlobRef | None]:
        try:
            ref = self._blobs.put(whole)
        except (
            OSError,
            Transient,
            Permanent,
        ) as error:  # the tool ran: its outcome is told, whatever became of the rest
            note = sanitised(shortened(f"\n[the whole could not be kept: {error}]", ERROR_CHARS_MAX))
            room = max(0, self._output_bytes_max - len(note.encode()))
            return head_and_tail(head_and_tail(output, room) + note, self._output_bytes_max), None
        return head_and_tail(output, self._output_bytes_max), ref


_NEVER = threading.Event()  # for tools that are back before anybody could stop them: making one costs 5 µs


def _context(start: ToolStart, cancelled: threading.Event) -> ToolContext:
    return ToolContext(start.run_id, start.dispatch, start.attempt, start.idempotency_key, cancelled)


def _result(tool: Tool, text: str, context: ToolContext | None) -> Any:
    arguments = tool.read(text)
    if tool.takes_dict:
        return tool.function(arguments)
    if tool.context_parameter:
        arguments[tool.context_parameter] = context
    return tool.function(**arguments)


def _said(error: BaseException) -> str:
    """What the model is told: no traceback, which would show it our paths and cost it tokens."""
    name = type(error).__name__
    try:
        words = str(error)
    except Exception:  # noqa: BLE001  an error that cannot say itself is still the tool's outcome
        words = ""
    return f"{name}: {words}" if words else name


_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


def _jsonable(value: Any) -> Any:
    """Models, dataclasses, dates, sets and what else pydantic knows, at any depth."""
    return _ANYTHING.dump_python(value, mode="json")


_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_jsonable).encode


def as_text(value: Any) -> str:
    """A tool's return value as the model reads it. Raises ValueError for what JSON cannot hold."""
    if isinstance(value, str):
        return str.__str__(value)
    if value is None:
        return ""
    if isinstance(value, bytes):
        return decoded(value)
    try:
        return _encoded(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the tool ran, but its result cannot be shown: {error}") from error


class _Pool:
    """Threads that do not keep the process alive, which those of `concurrent.futures` do: it joins them at exit.

    A thread whose call was stopped and has not come back does not count: tools that hang would otherwise, one by one,
    take the threads of all others.
    """

    def __init__(self, threads: int, run: Callable[[_Work], None]) -> None:
        self._run = run
        self._threads_max = threads
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._known: dict[str, _Work] = {}  # by dispatch; waiting or running, and not stopped
        self._open = 0  # calls that a thread has, or is to take
        self._threads = 0
        self._stuck = 0
        self._is_closed = False

    def add(self, work: _Work) -> None:
        with self._lock:
            if self._is_closed:
                return  # never started: whoever owns the run next decides about the call
            self._known[work.start.dispatch] = work
            self._open += 1
            self._staff()
        self._queue.put(work)

    def stop(self, dispatch: str) -> None:
        with self._lock:
            work = self._known.pop(dispatch, None)
            if work is None:
                return
            work.stopped = True
            work.context.cancelled.set()
            if work.begun:
                self._stuck += 1
                self._staff()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for work in self._known.values():
                work.context.cancelled.set()
            for _ in range(self._threads):
                self._queue.put(None)

    def _staff(self) -> None:
        """Start a thread if calls wait and there may be one more. Under the lock."""
        if self._threads < min(self._open, self._threads_max + min(self._stuck, STUCK_MAX)):
            self._threads += 1
            threading.Thread(target=self._serve, name="tool", daemon=True).start()

    def _serve(self) -> None:
        stays = True
        while stays and (work := self._queue.get()) is not None:
            if self._begin(work):
                try:
                    self._run(work)
                except BaseException:
                    self._end(work, stays=False)
                    raise  # a bug of ours or of `done`: seen on stderr, and the next call gets a new thread
            stays = self._end(work, stays=True)

    def _begin(self, work: _Work) -> bool:
        with self._lock:
            work.begun = not work.stopped and not self._is_closed
            return work.begun

    def _end(self, work: _Work, *, stays: bool) -> bool:
        """Let go of a call. Answers whether its thread stays: one that was stuck may have been replaced."""
        with self._lock:
            self._open -= 1
            self._stuck -= work.begun and work.stopped
            self._known.pop(work.start.dispatch, None)
            if stays and self._threads - self._stuck <= self._threads_max:
                return True
            self._threads -= 1
            self._staff()
            return False
