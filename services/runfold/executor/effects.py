"""What a run wants done in the world: model calls, tools, late reports. What it tells others is in `outward.py`.

Model calls start as soon as their decision is sent: a reply to a call that never counted is void. Tools start from the
read-back state only, and only for dispatches of this process: the read-back is the proof that the promise counts.
Outcomes go to the log, by whichever thread has them; nothing is handed over in memory beside it, except that the
process which wrote a reply may fold it ahead.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from runfold.core.pending import pending_replay, pending_tools
from runfold.core.state import LateReport, RunState, ToolCall, late_id
from runfold.events.envelope import Record
from runfold.events.types import LateReportRecorded, ModelFailed, ToolReported
from runfold.executor.claims import Claims
from runfold.executor.run import Run
from runfold.executor.writer import TooLarge, Writer
from runfold.ports import Model, ModelOutcome, ModelRequest, Tools, ToolStart


@dataclass(slots=True)
class Effects:
    writer: Writer
    model: Model
    tools: dict[str, Tools]  # by class: started by the process that wrote the dispatch
    claims: Claims  # the tools that whoever claims the dispatch first starts
    show: Callable[[str, str, int, str], None]  # run, model call, offset, text: to run-stream

    # ---- model

    def call_model(self, run: Run, call_id: str, now_ms: int) -> Record | None:
        """Start the call that `run.ahead` has in flight. Answers the outcome, appended, if it is there at once."""
        state = run.ahead
        if state.context is None or state.task is None:
            return None
        request = ModelRequest(
            run_id=state.run_id,
            call=call_id,
            model=state.context.model,
            instructions=state.context.instructions,
            transcript=tuple(state.transcript),
            tools=state.context.tools,
            may_call=not state.last_turn,
            output_tokens_max=state.limits.last_turn_tokens if state.last_turn else None,
            result_schema=state.task.result_schema,
            time_limit_s=_attempt_ms(state) / 1000,
        )
        partition, run_id, traceparent = run.partition, state.run_id, state.traceparent

        def done(outcome: ModelOutcome) -> None:
            self._model_outcome(partition, run_id, outcome, now_ms, traceparent)

        def delta(offset: int, text: str) -> None:
            self.show(run_id, call_id, offset, text)

        outcome = self.model.start(request, done, delta)
        if outcome is None:
            run.model_calls.add(call_id)
            return None
        return self._model_outcome(partition, run_id, outcome, now_ms, traceparent)

    def _model_outcome(
        self, partition: int, run_id: str, outcome: ModelOutcome, now_ms: int, traceparent: str
    ) -> Record:
        try:
            return self.writer.fact(partition, run_id, outcome, now_ms, traceparent=traceparent)
        except TooLarge as error:
            failed = ModelFailed(
                model_call=outcome.model_call,
                kind="reply_too_large",
                message=str(error),
                retryable=False,
                duration_ms=outcome.duration_ms,
            )
            return self.writer.fact(partition, run_id, failed, now_ms, traceparent=traceparent)

    def stop_model_calls(self, run: Run) -> None:
        """Close the streams that nobody waits for any more."""
        for call_id in run.model_calls:
            self.model.stop(call_id)
        run.model_calls.clear()

    # ---- tools

    def start_tools(self, run: Run, now_ms: int) -> None:
        """Start what is pending, ours and not started yet; a dispatch that stopped counting meanwhile is dropped."""
        wanted = set(run.to_start)
        run.to_start.clear()
        for call in pending_tools(run.state):
            dispatch = call.dispatches[-1]
            if dispatch in wanted and dispatch not in run.tools and _is_started_here(call, self.tools):
                run.tools.add(dispatch)
                self._start_tool(run, call, dispatch, now_ms)

    def _start_tool(self, run: Run, call: ToolCall, dispatch: str, now_ms: int) -> None:
        state = run.state
        reply = state.reply
        if reply is None or call.tool is None:
            return
        start = ToolStart(
            run_id=state.run_id,
            model_call=reply.model_call,
            position=call.position,
            dispatch=dispatch,
            attempt=call.attempt,
            tool=call.name,
            arguments=call.arguments,
            time_limit_s=call.time_limit_ms / 1000,
            idempotency_key=f"{reply.model_call}-{call.position}",
        )
        done = self.done(run, now_ms)
        report = self.tools[call.tool.tool_class].start(start, done)
        if report is not None:
            done(report)

    def done(self, run: Run, now_ms: int) -> Callable[[ToolReported], None]:
        """Where a tool's outcome goes, from any thread."""
        partition, run_id, traceparent = run.partition, run.state.run_id, run.state.traceparent

        def done(report: ToolReported) -> None:
            self._report(partition, run_id, report, now_ms, traceparent)

        return done

    def _report(self, partition: int, run_id: str, report: ToolReported, now_ms: int, traceparent: str) -> None:
        try:
            self.writer.fact(partition, run_id, report, now_ms, traceparent=traceparent)
        except TooLarge as error:
            small = replace(report, output=f"The output is not shown: {error}.")
            self.writer.fact(partition, run_id, small, now_ms, traceparent=traceparent)

    def stop_unwanted(self, run: Run) -> None:
        """Stop what still works for a call that was closed, or for a run that is cancelled or over."""
        state = run.state
        if run.tools:
            running = {call.dispatches[-1] for call in pending_tools(state)}
            if state.replay is not None and (replay := pending_replay(state)) is not None:
                running.add(replay.current)
            for dispatch in run.tools - running:
                for tools in (*self.tools.values(), *self.claims.tools.values()):
                    tools.stop(dispatch)
            run.tools &= running
        if run.model_calls and (state.cancel is not None or state.failure is not None or state.finished is not None):
            self.stop_model_calls(run)

    # ---- reports

    def record_late(self, partition: int, run_id: str, late: LateReport, now_ms: int) -> None:
        """Keep a report that came after its call was closed. The id is made from the report's: twice is once."""
        event = LateReportRecorded(
            model_call=late.model_call, position=late.position, dispatch=late.dispatch, report=late.report
        )
        event_id = late_id(late.report)
        if not self.writer.is_unread(event_id):
            self.writer.fact(partition, run_id, event, now_ms, event_id=event_id)


def _attempt_ms(state: RunState) -> int:
    limits = state.limits
    return min(limits.model_attempt_ms, limits.last_turn_ms) if state.last_turn else limits.model_attempt_ms


def _is_started_here(call: ToolCall, tools: dict[str, Tools]) -> bool:
    return call.tool is not None and not call.tool.waits_for and call.tool.tool_class in tools
