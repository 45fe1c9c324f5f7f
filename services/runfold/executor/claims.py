"""Tools whose effect begins behind a claim: `process`, and later `job` and `sandbox`.

Whoever owns the run claims what nobody claimed. When the claim comes back as the first one in the log, the tool is
started; what another process of this host began is adopted. Level-triggered: asked after every record of the run.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runfold.core.pending import Claimable, claimable
from runfold.events.types import ToolClaimed, ToolReported
from runfold.executor.run import Run
from runfold.executor.writer import Writer
from runfold.ports import ClaimedTools, ToolStart

Done = Callable[[ToolReported], None]
# Between claim and start: the next call gets a workspace that is rebuilt.
LOST = "the workspace was lost just before this call"


@dataclass(slots=True)
class Claims:
    writer: Writer
    source: str  # of the reports that are made here
    tools: dict[str, ClaimedTools]  # by class

    def tend(self, run: Run, done: Done, now_ms: int) -> None:
        calls = claimable(run.state)
        self._stop_rest(run, {call.dispatch for call in calls})
        for call in calls:
            tools = self.tools.get(call.tool.tool_class)
            if tools is None or call.dispatch in run.tools:
                continue
            if not call.claim:
                if call.dispatch not in run.claims and self._may_claim(run, call, tools):
                    self._try_to_claim(run, call, tools, done, now_ms)
            elif run.claims.get(call.dispatch) == call.claim:
                run.tools.add(call.dispatch)
                is_lost = call.tool.workspace and not tools.has_workspace(run.state.run_id, run.state.sandbox)
                report = self._not_started(call, LOST) if is_lost else tools.start(_start(run, call), done)
                if report is not None:
                    done(report)
            elif call.dispatch not in run.not_here:
                adopted = tools.adopt(_start(run, call), call.claimed_by, done)
                (run.tools if adopted else run.not_here).add(call.dispatch)

    def _try_to_claim(self, run: Run, call: Claimable, tools: ClaimedTools, done: Done, now_ms: int) -> None:
        try:
            self._claim(run, call, tools, now_ms)
        except OSError as error:  # no room for a workspace: an outcome for the model, and no fault of the run
            run.claims.setdefault(call.dispatch, "")
            done(self._not_started(call, f"no workspace could be made ({error.strerror})"))

    def _may_claim(self, run: Run, call: Claimable, tools: ClaimedTools) -> bool:
        """Not in a workspace that is not here: that is replaced first."""
        sandbox = run.state.sandbox
        if not call.tool.workspace or not sandbox or tools.has_workspace(run.state.run_id, sandbox):
            return True
        run.must_decide = True
        return False

    def _stop_rest(self, run: Run, wanted: set[str]) -> None:
        """End what a dead owner started, of a call that nobody waits for any more: each once."""
        reply = run.state.reply
        if reply is None:
            return
        for call in reply.calls:
            dispatch = call.dispatches[-1] if call.claim else ""
            if dispatch and dispatch not in wanted and dispatch not in run.told_to_stop:
                run.told_to_stop.add(dispatch)
                for tools in self.tools.values():
                    tools.stop(dispatch)

    def _not_started(self, call: Claimable, why: str) -> ToolReported:
        return ToolReported(
            model_call=call.model_call,
            position=call.position,
            dispatch=call.dispatch,
            source=self.source,
            nonce=call.claim,
            outcome="failed",
            output=f"Not started: {why}. Try again.",
        )

    def _claim(self, run: Run, call: Claimable, tools: ClaimedTools, now_ms: int) -> None:
        place = self._place(run, call, tools)
        nonce = run.claims[call.dispatch] = self.writer.new_id()
        claimed = ToolClaimed(
            model_call=call.model_call,
            position=call.position,
            dispatch=call.dispatch,
            nonce=nonce,
            process=place,
        )
        state = run.state
        self.writer.fact(run.partition, state.run_id, claimed, now_ms, traceparent=state.traceparent)

    def _place(self, run: Run, call: Claimable, tools: ClaimedTools) -> str:
        """Where it will run; the first call in a workspace says which one that is."""
        if not call.tool.workspace or run.state.sandbox:
            return tools.identity
        run.new_sandbox = run.new_sandbox or tools.new_workspace(run.state.run_id)
        return run.new_sandbox

    def sandbox_if_lost(self, run: Run) -> str:
        """The name of an empty workspace for a run whose own is not here; empty if it is, or none is needed."""
        state = run.ahead
        tools = next(iter(self.tools.values()), None)
        if not state.sandbox or state.reply is None or tools is None:
            return ""
        if tools.has_workspace(state.run_id, state.sandbox):
            return ""
        if not any(call.tool is not None and call.tool.workspace and not call.outcome for call in state.reply.calls):
            return ""
        if run.new_sandbox in ("", state.sandbox):
            try:
                run.new_sandbox = tools.new_workspace(state.run_id)
            except OSError:  # no room: the call waits for it, until its time limit
                return ""
        return run.new_sandbox


def _start(run: Run, call: Claimable) -> ToolStart:
    return ToolStart(
        run_id=run.state.run_id,
        model_call=call.model_call,
        position=call.position,
        dispatch=call.dispatch,
        attempt=call.attempt,
        tool=call.tool.name,
        arguments=call.arguments,
        time_limit_s=call.time_limit_ms / 1000,
        idempotency_key=f"{call.model_call}-{call.position}",
        sandbox=run.state.sandbox,
        nonce=call.claim,
    )
