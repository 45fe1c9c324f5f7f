"""`runfold dev`: the whole stack of processes, from nothing to a result, through crashes, to a clean end."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.gateway_place import PATIENCE_S, ROOT, Client

READY_S = 240.0  # the broker costs half a minute of processor time, on a busy machine more


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def children(pid: int) -> dict[str, int]:
    """The services that this process started, by name."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            words = path.joinpath("cmdline").read_bytes().decode().split("\0")
        except OSError:  # it ended meanwhile
            continue
        if parent == pid and "runfold.cli.main" in words:
            found[words[words.index("runfold.cli.main") + 1]] = int(path.name)
        elif parent == pid and "kafka.Kafka" in words:
            found["kafka"] = int(path.name)
    return found


def dev(folder: Path, port: int) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"}
    environment |= {"PYTHONPATH": str(ROOT / "services"), "RUNFOLD_GATEWAY_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, "-m", "runfold.cli.main", "dev", "--data", str(folder)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def until_said(process: "subprocess.Popen[str]", pattern: str) -> str:
    ends_at = time.monotonic() + READY_S
    for line in process.stdout or ():
        if re.search(pattern, line):
            return line
        assert time.monotonic() < ends_at, line
    raise AssertionError(f"it ended without {pattern!r}")


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.requirement("R36")
def test_dev_keeps_everything_running(tmp_path: Path) -> None:
    """A task is done; what is killed comes back; Ctrl-C ends all of it; the next start knows the run."""
    port = free_port()
    client = Client(port, token="")
    process = dev(tmp_path, port)
    until_said(process, f"gateway at http://127.0.0.1:{port}")
    body = {"task_id": "first", "agent": "traveller", "input": "When should I leave Porto?"}
    assert client.post("/tasks?wait=60", body).body["completion"]["status"] == "completed"
    before = children(process.pid)
    assert set(before) == {"kafka", "dev-model", "intake", "executor", "gateway"}
    for name in ("executor", "gateway"):
        os.kill(before[name], signal.SIGKILL)
        until_said(process, f"{name} ended with status -9; again in")
    ends_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            answer = client.post("/tasks?wait=60", {**body, "task_id": "second"})
            break
        except OSError:
            assert time.monotonic() < ends_at
            time.sleep(0.1)
    assert client.ends("second")["status"] == "completed", answer
    after = children(process.pid)
    assert all((after[name] != before[name]) == (name in ("executor", "gateway")) for name in before)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*before.values(), *after.values()))
    if process.stdout is not None:
        process.stdout.close()
    again = dev(tmp_path, port)
    until_said(again, "gateway at")
    assert client.ends("first")["status"] == "completed"
    again.terminate()
    assert again.wait(PATIENCE_S) == 0
    if again.stdout is not None:
        again.stdout.close()
