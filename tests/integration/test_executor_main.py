"""The executor's main, from its start to its end: what it leaves behind when it is told to stop."""

import threading
from pathlib import Path

import pytest

from runfold.adapters.toolbox import ToolContext, tool
from runfold.events.types import RunRequested
from tests.integration.services import PATIENCE_S, installation

pytestmark = pytest.mark.kafka
BEGUN, TOLD = threading.Event(), threading.Event()


@tool
def patient(context: ToolContext) -> str:
    """Works until it is told to stop."""
    BEGUN.set()
    assert context.cancelled.wait(PATIENCE_S)
    TOLD.set()
    return "stopped"


TOOLS = [patient]
SCRIPT = {"clerk": [{"calls": [{"name": "patient"}]}, {"text": "done"}]}


def test_an_executor_that_stops_tells_its_tools(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """They may leave things in order; nobody waits for them, and no thread of a tool keeps the process alive."""
    BEGUN.clear()
    TOLD.clear()
    with installation(
        kafka_bootstrap, topic_prefix, tmp_path, SCRIPT, tools=(f"{__name__}:TOOLS",), agent_tools=["patient"]
    ) as here:
        executor = here.executor()
        here.put(here.names.events, "run", RunRequested(task_id="run", agent="clerk", input="go"), "asked")
        assert BEGUN.wait(PATIENCE_S)
        assert not TOLD.is_set()
        assert executor.stop() is None
        assert TOLD.wait(PATIENCE_S)
