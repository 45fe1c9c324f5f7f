"""The tools of the gateway's tests: one that a person must allow, one that somebody else runs, and those that wait."""

from runfold.adapters.toolbox import Tool, tool
from runfold.adapters.waiting_tools import TOOLS as WAITING


@tool(approval="always", approval_reason="it costs money", changes_state=True)
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


@tool(immediate=True)
def echo(text: str) -> str:
    """Says it again."""
    return text


stock = Tool(
    name="stock",
    description="Asks the warehouse.",
    parameters={"type": "object", "properties": {"item": {"type": "string"}}},
    function=lambda arguments: "",
    takes_dict=True,
    is_external=True,
    time_limit_s=60,
)
TOOLS: list[Tool] = [pay, echo, stock, *WAITING]
