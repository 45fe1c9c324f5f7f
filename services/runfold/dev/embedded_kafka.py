"""A real Kafka for one developer or one test session: a single broker in KRaft mode, without Docker.

`python -m runfold.dev.embedded_kafka` runs one in the foreground. It listens on 127.0.0.1 only and is as small as
Kafka goes. The broker ends with the process that started it, however that one ends; only this broker is ever stopped,
through its own process handle.
"""

import argparse
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from runfold.adapters.topics import is_reachable
from runfold.dev.kafka_jars import formatted, jars, java
from runfold.ports import Permanent

HOST = "127.0.0.1"
READY_TIMEOUT_S = 180.0  # a start costs 15 to 30 s of processor time; on a busy machine that takes a while
STOP_TIMEOUT_S = 20.0  # Kafka closes its segments cleanly in one or two
STALE_AFTER_S = 60.0  # a folder younger than this may not have its lock yet
TEMP_PREFIX = "runfold-kafka-"
PR_SET_PDEATHSIG = 1

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
auto.create.topics.enable=false
message.max.bytes=5242880
replica.fetch.max.bytes=5242880
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.threads=1
"""


class EmbeddedKafka:
    """One broker. With a data folder its log stays; without, it lives in a temporary one that goes at the stop."""

    def __init__(self, data_dir: Path | None = None, port: int = 0) -> None:
        self.bootstrap_servers = ""
        self._kept = data_dir
        self._port = port
        self._folder: Path | None = None
        self._lock: IO[str] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker and come back when it answers. Raises Permanent, with what to do about it."""
        program, libs = java(), jars()
        if self._port and not _is_free(self._port):
            raise Permanent(f"port {self._port} is taken: stop what listens there, or choose another port")
        self._folder = self._take_folder()
        port = self._port or free_port()
        self.bootstrap_servers = f"{HOST}:{port}"
        try:
            self._format(program, libs, port)
            self._broker = self._launch(program, libs)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop this broker and nothing else; the temporary folder goes with it."""
        broker, self._broker = self._broker, None
        if broker is not None and broker.poll() is None:
            broker.send_signal(signal.SIGTERM if self._kept else signal.SIGKILL)  # nobody will read a temporary log
            try:
                broker.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                broker.kill()
                broker.wait(STOP_TIMEOUT_S)
        if self._folder is not None and self._kept is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def ended(self) -> bool:
        """Whether the broker is gone without having been asked to."""
        return self._broker is not None and self._broker.poll() is not None

    def _take_folder(self) -> Path:
        if self._kept is None:
            _remove_stale_folders()
            folder = Path(tempfile.mkdtemp(prefix=TEMP_PREFIX))
        else:
            folder = self._kept.resolve()
            folder.mkdir(parents=True, exist_ok=True)
        lock = _locked(folder)
        if lock is None:
            raise Permanent(f"another embedded Kafka uses {folder}: stop it, or choose another data folder")
        self._lock = lock
        return folder

    def _format(self, program: str, libs: Path, port: int) -> None:
        folder = self._in_use()
        logs = folder / "logs"
        text = PROPERTIES.format(host=HOST, port=port, controller_port=free_port(), logs=logs)
        (folder / "server.properties").write_text(text, encoding="utf-8")
        if (logs / "meta.properties").exists():
            return
        logs.mkdir(parents=True, exist_ok=True)
        checkpoint = formatted(program, libs, text.replace(f"log.dirs={logs}", "log.dirs={logs}"))
        (logs / "bootstrap.checkpoint").write_bytes(checkpoint)
        ids = f"version=1\ncluster.id={_new_id()}\ndirectory.id={_new_id()}\nnode.id=1\n"
        (logs / "meta.properties").write_text(ids, encoding="utf-8")

    def _launch(self, program: str, libs: Path) -> "subprocess.Popen[bytes]":
        folder = self._in_use()
        options = ["-Xmx512m", "-Xms256m", "-XX:+UseSerialGC"]  # few cores: no collector beside the work
        options += ["-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command = [program, *options, "-cp", f"{libs}/*", "kafka.Kafka", str(folder / "server.properties")]
        with (folder / "broker.log").open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder,
                start_new_session=True,  # a Ctrl-C at the terminal is for us; we stop the broker
                preexec_fn=dies_with_parent(),  # noqa: PLW1509  one system call, prepared before the fork
            )  # fmt: skip

    def _wait_until_ready(self) -> None:
        ends_at = time.monotonic() + READY_TIMEOUT_S
        while not is_reachable(self.bootstrap_servers, timeout_s=0.5):
            if self.ended():
                raise Permanent(f"the embedded Kafka ended at its start: {self._last_words()}")
            if time.monotonic() > ends_at:
                raise Permanent(f"the embedded Kafka did not answer in {READY_TIMEOUT_S:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        lines = (self._in_use() / "broker.log").read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "ERROR" in line or "Exception" in line]
        return (errors or lines or ["no output"])[-1][:300]

    def _in_use(self) -> Path:
        if self._folder is None:
            raise Permanent("the embedded Kafka is not started: call start() first")
        return self._folder


def _new_id() -> str:
    """A random id as Kafka writes them."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _locked(folder: Path) -> IO[str] | None:
    """An exclusive lock on the folder for as long as the file stays open, or None."""
    lock = (folder / "runfold.lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def _remove_stale_folders() -> None:
    """Killed processes leave their temporary folders: the next one to start takes them away."""
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMP_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < STALE_AFTER_S:
                continue
            lock = _locked(folder)
        except OSError:  # gone meanwhile, or somebody else's
            continue
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()


def dies_with_parent() -> Callable[[], None] | None:
    """What the child does before it becomes the broker: ask Linux to kill it when the thread that started it ends."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: little is safe between fork and exec
    parent = os.getpid()

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)

    return before_exec


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m runfold.dev.embedded_kafka", description="Run one Kafka broker.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--data", type=Path, default=None, help="folder of the log (default: temporary)")
    asked = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        with EmbeddedKafka(asked.data, asked.port) as kafka:
            print(kafka.bootstrap_servers, flush=True)
            while not stopping.wait(1.0):
                if kafka.ended():
                    print("the broker ended by itself", file=sys.stderr)
                    return 1
    except Permanent as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
