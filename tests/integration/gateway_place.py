"""A whole installation of processes for the gateway's tests, and a client that knows nothing but HTTP."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from confluent_kafka import Producer

from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics
from runfold.dev.model_server import ModelServer
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter
from runfold.events.types import Event, PhaseEntered

PATIENCE_S = 60.0
PARTITIONS = 2
TOKEN, SECRET = "the token", "the secret"
ROOT = Path(__file__).parents[2]
AGENT = 'model = "{name}"\ninstructions = "Be brief."\n'
CODEC = Codec()
WRITER = HeaderWriter("/test")


@dataclass
class Answered:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def detail(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        assert (self.body["status"], self.body["type"]) == (self.status, "about:blank")
        return str(self.body["detail"])


@dataclass
class Sse:
    """One server-sent event."""

    event: str
    data: Any
    id: int | None = None


@dataclass
class Client:
    """Speaks to one gateway."""

    port: int
    token: str = TOKEN

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Answered:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json", "authorization": f"Bearer {self.token}", **more.get("headers", {})}
        headers = {name: value for name, value in given.items() if value is not None}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, raw if method == "POST" else None, headers)
            answer = connection.getresponse()
            text = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answered(answer.status, json.loads(text) if text else None, found)

    def get(self, path: str, **more: Any) -> Answered:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Answered:
        return self.ask("POST", path, {} if body is None else body, **more)

    def submit(self, agent: str, **more: Any) -> str:
        answer = self.post("/tasks", {"task_id": f"{agent}-{uuid4().hex[:8]}", "agent": agent, "input": "go", **more})
        assert answer.status in (200, 201), answer
        return str(answer.body["task_id"])

    def run(self, run_id: str) -> Any:
        answer = self.get(f"/runs/{quote(run_id, safe='')}")
        assert answer.status == 200, answer
        return answer.body

    def until(self, run_id: str, is_so: Callable[[Any], Any], what: str) -> Any:
        """The run's view, when it is so."""
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            view = self.run(run_id)
            if is_so(view):
                return view
            assert time.monotonic() < ends_at, f"{what}: not within {PATIENCE_S:g} s; {view}"
            time.sleep(0.02)

    def ends(self, run_id: str) -> Any:
        answer = self.get(f"/runs/{quote(run_id, safe='')}/result?wait=60")
        assert answer.status == 200, answer
        return answer.body

    @contextmanager
    def events(self, run_id: str, **headers: str) -> Iterator[Iterator[Sse]]:
        """The stream, as it comes; heartbeats are events named "heartbeat"."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            named = {"authorization": f"Bearer {self.token}", **{n.replace("_", "-"): v for n, v in headers.items()}}
            connection.request("GET", f"/runs/{quote(run_id, safe='')}/events", headers=named)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[Sse]:
    found: dict[str, str] = {}
    for raw in answer:
        line = raw.decode().rstrip("\n")
        if line.startswith(":"):
            yield Sse("heartbeat", None)
        elif line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif found:
            yield Sse(found["event"], json.loads(found["data"]), int(found["id"]) if "id" in found else None)
            found = {}


@dataclass
class Place:
    """Topics, intake, executor and gateways, each a process."""

    bootstrap: str
    names: TopicNames
    folder: Path
    model: ModelServer
    environment: dict[str, str]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        config = {"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random", "linger.ms": 0}
        self.producer = Producer(config)

    def start(self, service: str, name: str = "", **more: str) -> "subprocess.Popen[bytes]":
        name = name or service
        with (self.folder / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "runfold.cli.main", service],
                env={**os.environ, **self.environment, **more}, stdout=out, stderr=out, cwd=ROOT,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def gateway(self, name: str = "gateway", **more: str) -> Client:
        """One more; answers when it is ready."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        process = self.start("gateway", name, RUNFOLD_GATEWAY_PORT=str(port), **more)
        client = Client(port, more.get("RUNFOLD_GATEWAY_TOKEN", TOKEN))
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                if client.get("/readyz").status == 200:
                    return client
            except OSError:
                assert process.poll() is None, self.said(name)
            assert time.monotonic() < ends_at, self.said(name)
            time.sleep(0.05)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    def append(self, run_id: str, event: Event, event_id: str) -> None:
        """A fact by somebody else, in the log when this returns."""
        headers = WRITER.fact(type(event).__name__, event_id, 0)
        self.producer.produce(self.names.events, CODEC.encode(event), run_id, headers=headers)
        assert self.producer.flush(PATIENCE_S) == 0

    def append_decision(self, run_id: str, event_id: str, *, follows: str) -> None:
        event = PhaseEntered(phase="awaiting_tools", turn=1)
        headers = WRITER.decision("PhaseEntered", event_id, 0, follows=follows, revision=1, phase="awaiting_tools")
        self.producer.produce(self.names.events, CODEC.encode(event), run_id, headers=headers)
        assert self.producer.flush(PATIENCE_S) == 0

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(PATIENCE_S / 2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def place(bootstrap: str, folder: Path, script: Mapping[str, Any], *services: str, **more: str) -> Iterator[Place]:
    """`script`: agents by name, each with the replies of its model."""
    names = ensure_topics(bootstrap, f"test-{uuid4().hex[:12]}", run_partitions=PARTITIONS, task_partitions=PARTITIONS)
    agents = folder / "agents"
    agents.mkdir()
    for name in script:
        (agents / f"{name}.toml").write_text(AGENT.format(name=name))
    with ModelServer(script) as model:
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "RUNFOLD_TOPIC_PREFIX": names.prefix, "RUNFOLD_RUN_PARTITIONS": str(PARTITIONS),
            "RUNFOLD_AGENTS": str(agents), "RUNFOLD_TOOLS": "tests.integration.gateway_tools:TOOLS",
            "RUNFOLD_BLOBS": str(folder / "blobs"), "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none",
            "RUNFOLD_GATEWAY_TOKEN": TOKEN, "RUNFOLD_DISPATCH_SECRET": SECRET, "RUNFOLD_GATEWAY_HEARTBEAT_S": "0.3",
            **more,
        }  # fmt: skip
        made = Place(bootstrap, names, folder, model, environment)
        try:
            for service in services:
                made.start(service)
            yield made
        finally:
            made.close()
            delete_topics(bootstrap, names)
