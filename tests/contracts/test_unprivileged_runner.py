"""Runners that are started by a user without rights: a user namespace gives them the same walls, where the host has one."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runfold.adapters.processes import BOOT, SOURCES
from runfold.runner import contract
from runfold.runner.contract import Bounds, Cage, Plan
from tests.contracts.process_worlds import PYTHON, UID_FIRST, processes, spool_folder, until
from tests.contracts.test_hostile_tools import DAEMON, FORKS, PARENT
from tests.contracts.test_sandbox_tools import LOOKS

RUNNER = [PYTHON, "-I", "-S", "-B", "-c", BOOT, SOURCES]
AS_USER: dict[str, Any] = {"user": UID_FIRST, "group": UID_FIRST, "extra_groups": []} if os.geteuid() == 0 else {}


@pytest.fixture
def folder() -> Iterator[Path]:
    with spool_folder() as made:
        if AS_USER:
            os.chown(made, UID_FIRST, UID_FIRST)
        yield made


@pytest.fixture
def namespaces(folder: Path) -> str:
    probe = subprocess.run([*RUNNER, "--probe", "0", folder], capture_output=True, check=True, timeout=60, **AS_USER)
    found = json.loads(probe.stdout)
    if not found["namespaces"]:
        pytest.skip(f"no user namespaces: {found['reasons']}")
    assert (found["namespaces"], found["uid"]) == ("user", None)
    return "user"


def ran(
    folder: Path, kind: str, target: list[str], arguments: dict[str, Any], *, clears: bool = True, **given: Any
) -> dict[str, Any]:
    """The result of a call, with what it printed. `clears`: nothing runs under its user afterwards."""
    plan = Plan(
        dispatch=f"u-{folder.name}", nonce="n", boot_id=contract.boot_id(), kind=kind, target=target, python=PYTHON,
        arguments=json.dumps(arguments), workspace=str(folder / "workspace"), **given,
        environment={"PATH": "/usr/bin:/bin", contract.DISPATCH_VARIABLE: f"u-{folder.name}"},
    )  # fmt: skip
    (folder / contract.SPEC).write_text(json.dumps(plan.as_json()))
    subprocess.run([*RUNNER, folder], check=True, timeout=60, **AS_USER)
    until(lambda: not clears or not processes(plan.dispatch), "everything of the tool is ended")
    result = contract.read_json(str(folder / contract.RESULT))
    assert result is not None
    return {**result, "printed": (folder / contract.STDOUT).read_text()}


def test_the_sandbox_has_the_same_walls(folder: Path, namespaces: str) -> None:
    """No other files, no network but its own, no processes of others, no rights."""
    code = {"language": "python", "code": f"SECRET = {str(folder)!r}{LOOKS}"}
    result = ran(folder, "builtin", ["execute_code"], code, cage=Cage(namespaces=namespaces, sandbox=True))
    printed = result["printed"].splitlines()
    assert result["outcome"] == "succeeded"
    assert printed[1] == "/workspace 2"
    assert printed[6:8] == ["1.1.1.1 Network is unreachable", "127.0.0.1 Connection refused"]
    assert printed[8].startswith("['0000000000000000', ")
    assert printed[9] == "False ['code.py']"
    assert (folder / "workspace" / "made").read_text() == "by code"


@pytest.mark.parametrize(
    ("code", "outcome", "said"),
    [
        ("print('hello')", "succeeded", "hello\n"),
        (FORKS, "failed", ""),
        (DAEMON, "succeeded", "left a daemon\n"),
        (PARENT, "succeeded", "it lives\n"),
    ],
)
def test_a_command_ends_with_all_it_started(folder: Path, namespaces: str, code: str, outcome: str, said: str) -> None:
    """Its processes are counted in its own namespace, and end with it; its runner is out of its reach."""
    bounds = Bounds(processes=24, time_limit_s=20 if code != FORKS else 1)
    result = ran(folder, "command", [PYTHON, "-c", code], {}, cage=Cage(namespaces=namespaces), bounds=bounds)
    assert (result["outcome"], result["printed"], result["left_running"]) == (outcome, said, 0)


@pytest.mark.parametrize(("code", "said"), [("print('hello')", "hello\n"), (DAEMON, "left a daemon\n")])
def test_without_any_namespace_nothing_is_left_either(folder: Path, code: str, said: str) -> None:
    """Whatever loses its parent becomes the runner's child."""
    result = ran(folder, "command", [PYTHON, "-c", code], {}, cage=Cage())
    assert (result["outcome"], result["printed"], result["left_running"]) == ("succeeded", said, 0)


def test_its_own_limit_on_processes_counts_from_those_it_has(folder: Path) -> None:
    """Without a user or a namespace of its own, the kernel counts all that this user runs."""
    code = "import threading\nprint(len([threading.Thread(target=print).start() for _ in range(5)]))"
    others = [subprocess.Popen(["sleep", "600"], **AS_USER) for _ in range(20)]
    try:
        bounds = Bounds(processes=8)
        result = ran(folder, "command", [PYTHON, "-c", code], {}, cage=Cage(), bounds=bounds, clears=False)
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert (result["outcome"], result["printed"].strip()) == ("succeeded", "5")
