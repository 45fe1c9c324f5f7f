"""The executor that is measured: default settings, `inline` tools, model in process."""

import os
import sys
import tempfile
import threading
from pathlib import Path

from runfold.adapters.agents import AgentConfig, Agents
from runfold.adapters.blobs import DirectoryBlobs
from runfold.adapters.scripted_model import FunctionModel
from runfold.adapters.toolbox import Toolbox, tool
from runfold.core.transcript import Reply
from runfold.events.types import Item, ModelFailed, ModelReplied, Usage
from runfold.executor.main import kafka_executor, serve
from runfold.ports import ModelOutcome, ModelRequest
from runfold.settings import Settings


def run(settings: Settings, stop: threading.Event) -> None:
    """Carry the benchmark's runs until asked to stop."""
    sys.path.insert(0, os.environ["BENCH_WORKLOAD"])
    import workload  # type: ignore[import-not-found]  # the folder that scripts/bench was given

    waits = bool(os.environ.get("BENCH_LAST_TURN_WAITS"))

    def reply(request: ModelRequest) -> ModelOutcome:
        turn = sum(isinstance(entry, Reply) for entry in request.transcript)
        said = workload.reply(turn)
        if waits and not said["calls"]:
            return ModelFailed(
                model_call=request.call, kind="transient", message="", retryable=True, retry_after_ms=500_000
            )
        items = [Item(kind="text", text=said["text"] * (5 if waits else 1))]
        items += [Item(kind="call", name="work", arguments="{}") for _ in range(said["calls"])]
        usage = Usage(input_tokens=100, output_tokens=50)
        finish = "tool_calls" if said["calls"] else "stop"
        return ModelReplied(model_call=request.call, items=items, finish_reason=finish, usage=usage)

    @tool(immediate=True)
    def work() -> str:
        """Answers at once."""
        return str(workload.output())

    toolbox = Toolbox([work])
    agents = Agents([AgentConfig(name="bench", model="in-process", instructions="Work.")], toolbox)
    blobs = DirectoryBlobs(Path(tempfile.gettempdir()) / "runfold-bench-blobs")
    executor = kafka_executor(settings, toolbox=toolbox, agents=agents, model=FunctionModel(reply), blobs=blobs)
    serve(executor, stop)
