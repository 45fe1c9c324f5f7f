"""The executor of the scenarios: a process of its own with the real model adapter, and tools that a test can hold back.

A tool that takes a `gate` returns only when the test has made a file of that name. Every tool that begins leaves a line
in the effects file. Tools that wait for a person, a time or a child, and those that ask for approval, are specified
here, beside the Python functions.

`wall_ahead_ms` makes this host's wall clock wrong: nothing but the times that people read may follow it.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runfold.adapters.agents import AgentConfig, Agents
from runfold.adapters.blobs import DirectoryBlobs
from runfold.adapters.clock import SystemClock
from runfold.adapters.openai_chat import ChatModel, ChatOptions
from runfold.adapters.toolbox import Tool, Toolbox, ToolContext, tool
from runfold.events.types import ToolSpec
from runfold.executor.main import kafka_executor, serve
from runfold.executor.settings import ExecutorSettings
from runfold.settings import Settings

LOOK_S = 0.005
LINE = "All work and no play makes a long line, ü€😀. "
HOSTILE = b"\x00one\xff\x1b[31mred\x1b[0m\r\ntwo\x07\xed\xa0\x80\r\n"
APPROVALS = {"pay": ("always", "money leaves the house"), "spend": ("amount > 100", "a large amount")}


def _schema(**properties: dict[str, str]) -> str:
    return json.dumps({"type": "object", "properties": properties, "required": sorted(properties)})


def _special(name: str, parameters: str, **how: Any) -> ToolSpec:
    given = {"tool_class": "inline", "time_limit_ms": 0, "changes_state": False, **how}
    return ToolSpec(name=name, description=name, parameters=parameters, **given)


TEXT = {"type": "string"}
SPECIAL = [
    _special("ask", _schema(question=TEXT), waits_for="person"),
    _special("wait", _schema(seconds={"type": "number"}), waits_for="time"),
    _special(
        "delegate", json.dumps({"type": "object", "properties": {"task": TEXT, "agent": TEXT}}), waits_for="child"
    ),
    _special("elsewhere", '{"type":"object"}', tool_class="external"),
]


class ScenarioToolbox(Toolbox):
    """The functions, and what is no function."""

    def specs(self) -> list[ToolSpec]:
        made = [
            replace(spec, approval=APPROVALS[spec.name][0], approval_reason=APPROVALS[spec.name][1])
            if spec.name in APPROVALS
            else spec
            for spec in super().specs()
        ]
        return sorted([*made, *SPECIAL], key=lambda spec: spec.name)


@dataclass
class SkewedClock(SystemClock):
    """A host whose wall clock is wrong."""

    wall_ahead_ms: int

    def wall_ms(self) -> int:
        return super().wall_ms() + self.wall_ahead_ms


class Folder:
    """What tools and tests share: a line for each tool that began, and gates, which are files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._effects = os.open(path / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def happened(self, context: ToolContext, what: str) -> None:
        said = (context.run_id, context.idempotency_key, context.dispatch, what)
        os.write(self._effects, ("\t".join(said) + "\n").encode())

    def until(self, gate: str, is_over: Callable[[], bool] = lambda: False) -> None:
        while not (self._path / gate).exists() and not is_over():
            time.sleep(LOOK_S)


def held_tools(folder: Folder) -> list[Tool]:
    @tool
    def hold(context: ToolContext, gate: str) -> str:
        """Answers when its gate opens, whatever anybody wants meanwhile."""
        folder.happened(context, "hold")
        folder.until(gate)
        return f"held {gate}"

    @tool
    def heed(context: ToolContext, gate: str) -> str:
        """Like hold, but ends when it is told that nobody waits."""
        folder.happened(context, "heed")
        folder.until(gate, context.cancelled.is_set)
        folder.happened(context, "stopped" if context.cancelled.is_set() else "opened")
        return f"heeded {gate}"

    @tool(idempotent=True)
    def fetch(context: ToolContext, gate: str) -> str:
        """Like hold, and may be started again."""
        folder.happened(context, "fetch")
        folder.until(gate)
        return f"fetched {gate}"

    return [hold, heed, fetch]


def plain_tools(folder: Folder) -> list[Tool]:
    @tool
    def note(context: ToolContext, text: str) -> str:
        """Answers with its text."""
        folder.happened(context, "note")
        return f"noted {text}"

    @tool
    def idle(context: ToolContext) -> None:
        """Takes nothing, answers nothing."""
        folder.happened(context, "idle")

    @tool
    def pay(context: ToolContext, amount: int) -> str:
        """Asks a person."""
        folder.happened(context, "pay")
        return f"paid {amount}"

    @tool
    def spend(context: ToolContext, amount: int) -> str:
        """Asks a person about large amounts."""
        folder.happened(context, "spend")
        return f"spent {amount}"

    @tool
    def hostile(context: ToolContext) -> bytes:
        """Bytes that are no text."""
        folder.happened(context, "hostile")
        return HOSTILE

    @tool
    def flood(context: ToolContext, megabytes: int) -> str:
        """One very long line."""
        folder.happened(context, "flood")
        return LINE * (megabytes * 1_000_000 // len(LINE.encode()))

    return [note, idle, pay, spend, hostile, flood]


def main(arguments: list[str]) -> int:
    asked = json.loads(arguments[0])
    path = Path(asked["folder"])
    folder = Folder(path)
    settings = Settings(
        bootstrap_servers=asked["bootstrap"], topic_prefix=asked["prefix"], run_partitions=asked["partitions"],
        executor_name=asked["name"],
    )  # fmt: skip
    toolbox = ScenarioToolbox([*held_tools(folder), *plain_tools(folder)])
    configs = [AgentConfig(name=name, model=name, instructions="Be brief.") for name in asked["agents"]]
    blobs = DirectoryBlobs(path / "blobs")
    model = ChatModel(ChatOptions(base_url=asked["model"]), blobs)
    executor = kafka_executor(
        settings, toolbox=toolbox, agents=Agents(configs, toolbox), model=model, blobs=blobs,
        bounds=ExecutorSettings(name=asked["name"], session_timeout_ms=asked["orphaned_ms"] // 2, poll_ms_max=50),
        tell=lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    executor.writer.clock = SkewedClock(asked.get("wall_ahead_ms", 0))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        serve(executor, stop)
    finally:
        model.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
