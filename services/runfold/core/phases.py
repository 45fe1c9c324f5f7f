"""The phases of a run and the steps between them. The phase is the recovery address: a new owner goes on from it.

`queued` stands for "no decision yet"; it never appears in a header.
"""

from enum import StrEnum


class Phase(StrEnum):
    QUEUED = "queued"
    LOADING_CONTEXT = "loading_context"
    CALLING_MODEL = "calling_model"
    DISPATCHING_TOOLS = "dispatching_tools"
    AWAITING_TOOLS = "awaiting_tools"
    ADVANCING_TURN = "advancing_turn"
    AWAITING_MESSAGE = "awaiting_message"
    REPORTING = "reporting"
    REPORTING_FAILURE = "reporting_failure"
    DONE = "done"


# What PhaseEntered may do. All other transitions are made by the decision that needs them.
ENTERED: dict[Phase, frozenset[Phase]] = {
    Phase.AWAITING_TOOLS: frozenset({Phase.DISPATCHING_TOOLS}),
    Phase.AWAITING_MESSAGE: frozenset({Phase.ADVANCING_TURN}),
}
# Where a model call may start.
BEFORE_MODEL_CALL = frozenset(
    {Phase.LOADING_CONTEXT, Phase.CALLING_MODEL, Phase.ADVANCING_TURN, Phase.AWAITING_MESSAGE}
)
TOOL_PHASES = frozenset({Phase.CALLING_MODEL, Phase.DISPATCHING_TOOLS, Phase.AWAITING_TOOLS})
DISPATCH_PHASES = {
    str(Phase.DISPATCHING_TOOLS): Phase.DISPATCHING_TOOLS,
    str(Phase.AWAITING_TOOLS): Phase.AWAITING_TOOLS,
}
PHASES = {str(phase): phase for phase in Phase}
