"""The tools of the gateway's tests: one that a person must allow, one that somebody else runs, and those that wait."""

from dataclasses import replace

from runfold.adapters.toolbox import Tool, tool
from runfold.adapters.waiting_tools import TOOLS as WAITING
from runfold.events.types import ToolSpec


class External(Tool):
    """Runs elsewhere, and is reported over HTTP."""

    __slots__ = ()

    def spec(self) -> ToolSpec:
        return replace(Tool.spec(self), tool_class="external")


@tool(approval="always", approval_reason="it costs money", changes_state=True)
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


@tool(immediate=True)
def echo(text: str) -> str:
    """Says it again."""
    return text


stock = External(
    name="stock",
    description="Asks the warehouse.",
    parameters={"type": "object", "properties": {"item": {"type": "string"}}},
    function=lambda arguments: "",
    takes_dict=True,
    time_limit_s=60,
)
TOOLS: list[Tool] = [pay, echo, stock, *WAITING]
