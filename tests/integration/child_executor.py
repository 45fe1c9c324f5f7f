"""The program that carries the executors which the integration tests start, stop and kill.

Importing the product takes seconds, and these tests need a hundred processes. So this program imports once and forks an
executor for each line of JSON on its standard input; it tells on standard output what becomes of each. Every executor
is a process of its own, with its own Kafka clients, made after the fork. All of them end with this program.
"""

import ctypes
import hashlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from runfold.adapters import kafka, waiting_tools
from runfold.adapters.agents import AgentConfig, Agents
from runfold.adapters.blobs import DirectoryBlobs
from runfold.adapters.process_spec import Process
from runfold.adapters.scripted_model import FunctionModel
from runfold.adapters.toolbox import Tool, Toolbox, ToolContext, tool
from runfold.core.transcript import Reply
from runfold.events.types import Item, ModelFailed, ModelReplied, Usage
from runfold.executor.loop import Executor
from runfold.executor.main import kafka_executor, keep_collector_out
from runfold.executor.settings import ExecutorSettings
from runfold.ports import ModelOutcome, ModelRequest, Permanent
from runfold.settings import Settings

LOOK_S = 0.01
SHORT_CALLS = [(name, "{}") for name in ("note", "mark", "fails")]
PR_SET_PDEATHSIG = 1
KILLED = 137
SHORT, LONG = 2, 199  # turns with tools; the answer is one more
PEOPLE = [  # the calls of each turn of a run that meets people, a child, a clock and a failing model
    [("pay", "{}"), ("ask_person", '{"question": "which?"}'), ("mark", "{}")],
    [("delegate", '{"task": "go", "agent": "short"}'), ("wait", '{"seconds": 0.2}')],
    [("pay", "{}"), ("apart", "{}"), ("fails", "{}")],
]
FAILS_OF_256 = 40  # model calls that fail once, by their id


def reply(request: ModelRequest) -> ModelOutcome:
    """What the model says follows from the number of its replies so far; the instructions say how many have calls."""
    turn = sum(isinstance(entry, Reply) for entry in request.transcript)
    usage = Usage(input_tokens=10, output_tokens=5)
    if request.model == "people" and hashlib.sha256(request.call.encode()).digest()[0] < FAILS_OF_256:
        return ModelFailed(model_call=request.call, kind="transient", message="busy", retryable=True, retry_after_ms=5)
    if turn >= int(request.instructions):
        items, finish = [Item(kind="text", text="done")], "stop"
    else:
        calls = {
            "short": SHORT_CALLS,
            "people": PEOPLE[turn % len(PEOPLE)],
            "builder": [("count", "{}")] * 2,
            "slow": [("slow", "{}")],
        }.get(request.model, [("mark", "{}")])
        items, finish = [Item(kind="call", name=name, arguments=given) for name, given in calls], "tool_calls"
    return ModelReplied(model_call=request.call, items=items, finish_reason=finish, usage=usage)


def tools(effects: str) -> Toolbox:
    """Three tools, each leaving one line in the effects file: in the pool, on the loop's thread, and always failing."""
    file = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def happened(context: ToolContext) -> None:
        os.write(file, f"{context.run_id} {context.idempotency_key} {context.dispatch}\n".encode())

    @tool
    def note(context: ToolContext) -> str:
        """Leaves a line."""
        happened(context)
        return "noted"

    @tool(immediate=True)
    def mark(context: ToolContext) -> str:
        """Leaves a line at once."""
        happened(context)
        return "marked"

    @tool
    def fails(context: ToolContext) -> str:
        """Leaves a line and raises."""
        happened(context)
        raise RuntimeError("it always does")

    @tool(approval="always", approval_reason="it costs money")
    def pay(context: ToolContext) -> str:
        """Leaves a line, once a person said yes."""
        happened(context)
        return "paid"

    # The same line, by a process of its own: it may end after its executor.
    line = f'echo "$RUNFOLD_RUN_ID $RUNFOLD_IDEMPOTENCY_KEY $RUNFOLD_DISPATCH" >> {effects}; echo apart'
    apart = Tool(
        name="apart",
        description="Leaves a line from a process of its own.",
        parameters={"type": "object", "properties": {}},
        function=mark.function,
        changes_state=True,
        process=Process(command=("/bin/sh", "-c", line)),
    )
    count = Tool(
        name="count",
        description="Adds a line to a file of the workspace, and says how many it has.",
        parameters={"type": "object", "properties": {}},
        function=mark.function,
        changes_state=True,
        process=Process(command=("/bin/sh", "-c", "echo line >> lines; wc -l < lines"), workspace=True, sandbox=True),
    )
    slow = replace(apart, name="slow", process=Process(command=("/bin/sh", "-c", f"{line}; exec sleep 60")))
    return Toolbox([note, mark, fails, pay, apart, count, slow, *waiting_tools.TOOLS])


class CrashingLog:
    """Ends the process when this run's k-th append, or the k-th batch of them, is in the log."""

    def __init__(self, executor: Executor, crash: dict[str, Any]) -> None:
        self._log: Any = executor.log
        self._outbox: Any = executor.outward.outbox
        self._run, self._after, self._number = crash["run"], crash["after"], crash["number"]
        self._lock = threading.Lock()
        self._appends = self._seen = self._batches = 0
        executor.log = executor.writer.log = executor.ownership.log = executor.outward.outbox = self  # type: ignore[assignment]  # the rest is handed on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log if hasattr(self._log, name) else self._outbox, name)

    def append(self, partition: int | None, key: str, value: bytes, headers: Any) -> None:
        self._log.append(partition, key, value, headers)
        self._count(key)

    def publish(self, topic: Any, key: str, value: bytes, headers: Any, acknowledged: Any) -> None:
        self._outbox.publish(topic, key, value, headers, acknowledged)
        self._count(key)

    def poll(self, timeout_s: float) -> Any:
        if self._appends > self._seen:
            self._seen = self._appends
            self._batches += 1
            if self._after == "batch" and self._batches == self._number:
                self._end()
        return self._log.poll(timeout_s)

    def _count(self, key: str) -> None:
        if key != self._run:
            return
        with self._lock:
            self._appends += 1
            if self._after == "append" and self._appends == self._number:
                self._end()

    def _end(self) -> None:
        self._log.send_held()
        self._log._producer.flush(10)
        self._outbox._producer.flush(10)
        os._exit(KILLED)


def carry(asked: dict[str, Any], tell: Any) -> None:
    """Be one executor until a signal ends it."""
    settings = Settings(
        bootstrap_servers=asked["bootstrap"], topic_prefix=asked["prefix"], executor_name=asked["name"],
        run_partitions=asked["partitions"], spool=Path(asked["effects"] + "-spool-" + asked.get("host", "")), isolation="none",
        kafka_client={"session.timeout.ms": str(asked["session_ms"])},
    )  # fmt: skip
    kafka.BATCH = asked.get("batch", kafka.BATCH)
    toolbox = tools(asked["effects"])
    configs = [
        AgentConfig(name="short", model="short", instructions=str(SHORT), tools=("note", "mark", "fails")),
        AgentConfig(name="people", model="people", instructions=str(len(PEOPLE))),
        AgentConfig(name="builder", model="builder", instructions="2"),
        AgentConfig(name="slow", model="slow", instructions="1"),
        AgentConfig(name="limited", model="people", instructions=str(LONG), limits={"tokens": 35}),
        AgentConfig(name="long", model="long", instructions=str(LONG), limits={"tool_calls": 1_000}),
    ]
    bounds = ExecutorSettings(name=asked["name"], session_timeout_ms=asked["orphaned_ms"] // 2, commit_interval_ms=500)
    executor = kafka_executor(
        settings,
        toolbox=toolbox,
        agents=Agents(configs, toolbox),
        model=FunctionModel(reply),
        blobs=DirectoryBlobs(Path(tempfile.gettempdir()) / "runfold-test-blobs"),
        bounds=bounds,
        tell=lambda text: print(asked["name"], text, file=sys.stderr, flush=True),
    )
    if "crash" in asked:
        CrashingLog(executor, asked["crash"])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    keep_collector_out()
    executor.open()
    is_live = was_assigned = False
    while not stop.is_set():
        executor.step()
        partitions = executor.ownership.partitions.values()
        if partitions and not was_assigned:
            was_assigned = True
            tell(event="assigned", at=time.time())
        if partitions and not is_live and all(each.restoring is None for each in partitions):
            is_live = True
            tell(event="live", at=time.time(), records=executor.counts.records, cpu_s=time.process_time())
    executor.close()


def start(asked: dict[str, Any], parent: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    code = 1
    try:
        carry(asked, lambda **said: say(id=asked["id"], **said))
        code = 0
    except Permanent as error:
        print(asked["name"], error, file=sys.stderr, flush=True)
        code = 3
    finally:
        os._exit(code)


def say(**said: Any) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")  # short enough to stay whole beside those of other processes


def main() -> None:
    ids: dict[int, int] = {}
    rest = b""
    while True:
        if select.select([0], [], [], LOOK_S)[0]:
            got = os.read(0, 65536)
            if not got:
                return  # whoever started us is gone; the executors go with us
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                pid = start(asked, os.getpid())
                ids[pid] = asked["id"]
                say(id=asked["id"], event="started", pid=pid)
        while ids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            say(id=ids.pop(pid), event="ended", status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
