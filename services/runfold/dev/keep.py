"""`runfold dev`: Kafka, a model and the services on this machine, each a process of its own, until Ctrl-C.

What ends is started again, after a pause that grows while it keeps ending. Each service writes to a file of its own.
Everything that was started here is stopped by its process id; if this process is killed, Linux ends the others with it.
"""

import http.client
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from runfold.dev.embedded_kafka import EmbeddedKafka, dies_with_parent, free_port
from runfold.settings import Settings

DEMO = Path(__file__).parent / "demo_files"
TOOLS = "runfold.dev.demo_tools:TOOLS,runfold.adapters.waiting_tools:TOOLS"
LOOK_S = 0.2
STOP_S = 15.0  # a service sends what it still holds
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0  # before what ended is started again
SETTLED_S = 60.0  # what ran for so long had no trouble starting
PARTITIONS = "4"


@dataclass(slots=True)
class Kept:
    """One service that is to run."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None
    started_s: float = 0.0
    pause_s: float = PAUSE_S
    again_at_s: float | None = None  # None: it runs

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self, now_s: float) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runfold.cli.main", *self.command],
                env=dict(self.environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,  # a Ctrl-C at the terminal is for us; we stop it
                preexec_fn=dies_with_parent(),  # noqa: PLW1509  one system call, prepared before the fork
            )  # fmt: skip
        self.started_s, self.again_at_s = now_s, None

    def look(self, now_s: float) -> str:
        """Start it again when it is time. Answers what there is to say."""
        if self.again_at_s is not None:
            if now_s >= self.again_at_s:
                self.start(now_s)
            return ""
        status = self.process.poll() if self.process is not None else None
        if status is None:
            return ""
        if now_s - self.started_s >= SETTLED_S:
            self.pause_s = PAUSE_S
        self.again_at_s = now_s + self.pause_s
        said = f"{self.name} ended with status {status}; again in {self.pause_s:g} s; see {self.log}"
        self.pause_s = min(PAUSE_S_MAX, self.pause_s * 2)
        return said

    def stop(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Stack:
    """Everything that is kept running."""

    services: list[Kept]
    kafka: EmbeddedKafka | None
    say: Callable[[str], None]

    def run(self, stop: threading.Event, ready: Callable[[], bool], addresses: list[str]) -> None:
        for service in self.services:
            service.start(time.monotonic())
        is_told = False
        while not stop.wait(LOOK_S):
            if self.kafka is not None and self.kafka.ended():
                self.say("Kafka ended; it is started again")
                self.kafka.stop()
                self.kafka.start()
            for service in self.services:
                said = service.look(time.monotonic())
                if said:
                    self.say(said)
            if not is_told and ready():
                is_told = True
                for line in addresses:
                    self.say(line)

    def stop(self) -> None:
        for service in self.services:
            if service.process is not None and service.process.poll() is None:
                service.process.terminate()  # all at once; then each is waited for
        for service in self.services:
            service.stop()


def keep(environ: Mapping[str, str], folder: Path, kafka_port: int) -> int:
    """Run the stack until SIGINT or SIGTERM. Answers the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    folder.mkdir(parents=True, exist_ok=True)
    with _kafka(environ, folder, kafka_port) as (bootstrap, kafka):
        services, environment = wanted(environ, folder, bootstrap)
        settings = Settings.read({n: v for n, v in environment.items() if n.startswith("RUNFOLD_")})
        address = f"http://{settings.gateway_host}:{settings.gateway_port}"
        addresses = [
            f"gateway at {address}, described by {address}/openapi.json",
            f"Kafka at {bootstrap}, topics {settings.topic_prefix}.*",
            f"model at {environment['OPENAI_BASE_URL']}",
            f"logs and data in {folder}; Ctrl-C stops everything",
            'try: runfold submit traveller "When should I leave Porto?" --wait',
        ]
        stack = Stack(services, kafka, _say)
        try:
            stack.run(stop, lambda: _is_ready(settings), addresses)
        finally:
            stack.stop()
    return 0


def wanted(environ: Mapping[str, str], folder: Path, bootstrap: str) -> tuple[list[Kept], dict[str, str]]:
    """The services to keep running, and the environment they share; what is set already stays."""
    environment = {
        "RUNFOLD_RUN_PARTITIONS": PARTITIONS, "RUNFOLD_AGENTS": str(DEMO / "agents"), "RUNFOLD_TOOLS": TOOLS,
        "RUNFOLD_BLOBS": str(folder / "blobs"), "RUNFOLD_EXECUTOR_NAME": "dev", "RUNFOLD_INTAKE_NAME": "dev",
        "OPENAI_API_KEY": "none-needed", **environ, "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
    }  # fmt: skip
    services = []
    if "OPENAI_BASE_URL" not in environ:
        port = free_port()
        environment["OPENAI_BASE_URL"] = f"http://127.0.0.1:{port}/v1"
        script = str(DEMO / "model.json")
        services.append(Kept("model", ("dev-model", "--script", script, "--port", str(port)), environment, folder))
    services += [Kept(name, (name,), environment, folder) for name in ("intake", "executor", "gateway")]
    return services, environment


@contextmanager
def _kafka(environ: Mapping[str, str], folder: Path, port: int) -> Iterator[tuple[str, EmbeddedKafka | None]]:
    given = environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given, None
        return
    _say("starting Kafka (the first time its jars are fetched, about a minute)")
    # A port that stays: the services keep it when the broker is started again.
    with EmbeddedKafka(folder / "kafka", port or free_port()) as kafka:
        yield kafka.bootstrap_servers, kafka


def _is_ready(settings: Settings) -> bool:
    try:
        with closing(http.client.HTTPConnection(settings.gateway_host, settings.gateway_port, timeout=1)) as asked:
            asked.request("GET", "/readyz")
            return asked.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
