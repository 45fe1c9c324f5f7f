"""Runs tools of class `inline`: Python functions in the executor's own process.

A tool that is declared immediate answers on the spot. All others run in a thread pool and report from there. The time
limit is the executor's: a thread cannot be stopped, so a passed limit gives the model an outcome and the thread goes on;
its report is then late. `stop` keeps a call that has not begun from beginning, and sets `ToolContext.cancelled`.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from typing import Any

from pydantic import BaseModel

from runfold.adapters.toolbox import Tool, Toolbox, ToolContext
from runfold.adapters.truncation import head_and_tail
from runfold.events.text import decoded, sanitised
from runfold.events.types import BlobRef, ToolReported
from runfold.ports import Blobs, ToolStart

# 64 KiB are some 16,000 tokens: more of one output rarely helps a model, and a hundred of them fill its context.
OUTPUT_BYTES_MAX = 64 * 1024
THREADS = 64


class InlineTools:
    def __init__(
        self,
        toolbox: Toolbox,
        blobs: Blobs,
        source: str,
        *,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
        threads: int = THREADS,
    ) -> None:
        self._tools = toolbox.tools
        self._blobs = blobs
        self._source = source
        self._output_bytes_max = output_bytes_max
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tool")
        self._running: dict[str, tuple[Future[None], ToolContext]] = {}

    def start(self, start: ToolStart, done: Callable[[ToolReported], None]) -> ToolReported | None:
        tool = self._tools.get(start.tool)
        context = ToolContext(start.run_id, start.dispatch, start.attempt, start.idempotency_key)
        if tool is None:  # it was there when the run began
            return self._report(start, "failed", f"The tool {start.tool!r} is not deployed here any more.", 0)
        if tool.immediate:
            return self._call(tool, start, context)

        def work() -> None:
            try:
                done(self._call(tool, start, context))
            finally:
                self._running.pop(start.dispatch, None)

        self._running[start.dispatch] = (self._pool.submit(work), context)
        return None

    def stop(self, dispatch: str) -> None:
        future, context = self._running.pop(dispatch, (None, None))
        if future is not None and context is not None:
            context.cancelled.set()
            future.cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _call(self, tool: Tool, start: ToolStart, context: ToolContext) -> ToolReported:
        began_ns = time.perf_counter_ns()
        try:
            outcome, output = "succeeded", as_text(_result(tool, json.loads(start.arguments), context))
        except BaseException as error:  # noqa: BLE001  whatever a tool raises, SystemExit too, is its outcome
            outcome, output = "failed", f"{type(error).__name__}: {error}"
        return self._report(start, outcome, sanitised(output), (time.perf_counter_ns() - began_ns) // 1_000_000)

    def _report(self, start: ToolStart, outcome: str, output: str, duration_ms: int) -> ToolReported:
        size, ref = len(output), None
        if size * 4 > self._output_bytes_max or not output.isascii():
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
        except OSError as error:  # the tool ran: its outcome is told, whatever became of the rest of its output
            return head_and_tail(output, self._output_bytes_max) + f"\n[the whole could not be kept: {error}]", None
        return head_and_tail(output, self._output_bytes_max), ref


def _result(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> Any:
    if tool.takes_dict:
        return tool.function(arguments)
    if tool.arguments_model is not None:
        checked = tool.arguments_model.model_validate(arguments)
        arguments = {name: getattr(checked, name) for name in arguments}
    if tool.context_parameter:
        arguments[tool.context_parameter] = context
    return tool.function(**arguments)


def as_text(value: Any) -> str:
    """A tool's return value as the model reads it. Raises ValueError for what JSON cannot hold."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return decoded(value)
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
