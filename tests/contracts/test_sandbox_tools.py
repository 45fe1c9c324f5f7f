"""Code and files in the run's workspace: what a call sees, what it cannot reach, and what stays for the next one."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runfold.events.types import ToolReported
from tests.contracts.process_worlds import World, command, spool_folder

BOXED = command("boxed", "sh", "-c", "echo here > new && cat new; ls /", sandbox=True, workspace=True)
LOOKS = """
import os, socket
print(sorted(os.listdir("/")))
print(os.getcwd(), len([name for name in os.listdir("/proc") if name.isdigit()]))
for path in ("/usr/x", "/etc/x", "/x", "/proc/sys/kernel/hostname"):
    try: open(path, "w")
    except OSError as error: print(path, type(error).__name__)
for address in ("1.1.1.1", "127.0.0.1"):
    try: socket.create_connection((address, 9), 2)
    except OSError as error: print(address, error.strerror)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd", "NoNewPrivs"))][::2])
print(os.path.exists(SECRET), os.listdir("/tmp"))
open("made", "w").write("by code")
"""


@pytest.fixture(scope="module", params=["auto", "none"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with spool_folder() as folder:
        made = World(folder, [BOXED], isolation=request.param)
        yield made
        made.tools.close()


@pytest.fixture(scope="module")
def boxed() -> Iterator[World]:
    """With namespaces."""
    with spool_folder() as folder:
        made = World(folder, [BOXED])
        if not made.tools.isolation.namespaces:
            pytest.skip(made.tools.isolation.lacks)
        yield made
        made.tools.close()


def ran(world: World, tool: str, **arguments: Any) -> ToolReported:
    ran.count += 1  # type: ignore[attr-defined]
    return world.ran(tool, json.dumps(arguments), dispatch=f"s{ran.count}")  # type: ignore[attr-defined]


ran.count = 0  # type: ignore[attr-defined]


def code(world: World, language: str, text: str) -> ToolReported:
    return ran(world, "execute_code", language=language, code=text)


# ---- files


@pytest.mark.requirement("R19")
def test_files_are_written_read_listed_and_deleted(world: World) -> None:
    """Each call is a process of its own; the workspace stays."""
    assert ran(world, "list_files").output == "(empty)"
    assert ran(world, "write_file", path="a/b.txt", content="1\n2\n3\n").output == "wrote 6 bytes to a/b.txt"
    assert ran(world, "write_file", path="a/b.txt", content="4\n", append=True).outcome == "succeeded"
    assert ran(world, "read_file", path="/workspace/a/b.txt").output == "1\n2\n3\n4\n"
    assert ran(world, "read_file", path="a/b.txt", first_line=2, lines=2).output == "2\n3\n"
    assert ran(world, "list_files").output == "a/\na/b.txt (8 bytes)"
    assert ran(world, "delete_file", path="a").output == "'a': Directory not empty"
    assert ran(world, "delete_file", path="a/b.txt").output == "deleted a/b.txt"
    assert ran(world, "delete_file", path="a").outcome == "succeeded"
    report = ran(world, "read_file", path="a/b.txt")
    assert (report.outcome, report.output) == ("failed", "'a/b.txt': No such file or directory")


@pytest.mark.requirement("R19")
@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "/workspace/../etc/passwd", "~/../x/..", "."])
@pytest.mark.parametrize("tool", ["read_file", "write_file", "delete_file"])
def test_no_path_leads_out(world: World, tool: str, path: str) -> None:
    """Refused in words, whichever tool is asked."""
    arguments = {"path": path} | ({"content": "x"} if tool == "write_file" else {})
    report = ran(world, tool, **arguments)
    assert report.outcome == "failed"
    assert "workspace" in report.output


@pytest.mark.requirement("R19")
def test_links_and_pipes_that_code_left_are_not_followed(boxed: World) -> None:
    """Links to outside, links in the way, links to nowhere, and a pipe that would block for ever."""
    made = "ln -s /etc etc; ln -s /etc/passwd p; ln -s nowhere n; mkfifo f; mkdir -p d; ln -s d e; touch d/x; ls"
    assert code(boxed, "bash", made).outcome == "succeeded"
    for path in ("etc/passwd", "p", "n", "f", "e/x"):
        assert ran(boxed, "read_file", path=path).outcome == "failed", path
    for path in ("etc/new", "e/new"):
        assert ran(boxed, "write_file", path=path, content="x").outcome == "failed", path
    assert ran(boxed, "write_file", path="p", content="mine").outcome == "succeeded", "a link is replaced"
    assert ran(boxed, "read_file", path="p").output == "mine"
    assert "root:" in Path("/etc/passwd").read_text()
    assert "etc -> /etc (symbolic link)" in ran(boxed, "list_files").output
    assert ran(boxed, "delete_file", path="etc").outcome == "succeeded", "the link, not what it names"


# ---- code


@pytest.mark.requirement("R19")
@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "import helper; print(helper.VALUE)"),
        ("bash", "cat helper.py | sed 's/VALUE = //'"),
        ("javascript", "console.log(require('fs').readFileSync('helper.py', 'utf8').split(' = ')[1].trim())"),
    ],
)
def test_code_runs_in_the_workspace(boxed: World, language: str, text: str) -> None:
    """What write_file wrote is there, in every language."""
    if language == "javascript" and shutil.which("node", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("node is not installed")
    ran(boxed, "write_file", path="helper.py", content="VALUE = 42\n")
    report = code(boxed, language, text)
    assert (report.outcome, report.output) == ("succeeded", "42\n")


def test_an_error_in_code_is_shown_with_what_it_printed(boxed: World) -> None:
    """Exit status, output, traceback."""
    report = code(boxed, "python", "print('before')\n1 / 0")
    assert (report.outcome, report.exit_code) == ("failed", 1)
    assert report.output.startswith("[it ended with exit status 1]\nbefore\n[stderr]\nTraceback")
    assert report.output.endswith("ZeroDivisionError: division by zero\n")


def test_a_sandbox_has_nothing_but_its_workspace(boxed: World, tmp_path: Path) -> None:
    """No other files, no network but its own, no processes of others, no rights."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    lines = code(boxed, "python", f"SECRET = {str(secret)!r}{LOOKS}").output.splitlines()
    assert {"workspace", "usr", "tmp"} < set(eval(lines[0])) < {
        "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "root", "sbin", "tmp", "usr", "workspace", "opt", "home",
    }  # fmt: skip
    assert lines[1] == "/workspace 2"
    assert {line.split()[1] for line in lines[2:6]} == {"OSError", "PermissionError"}
    assert lines[6:8] == ["1.1.1.1 Network is unreachable", "127.0.0.1 Connection refused"]
    assert lines[8].startswith("['0000000000000000', ")
    assert lines[9] == "False ['code.py']"
    assert ran(boxed, "read_file", path="made").output == "by code"


def test_a_command_may_ask_for_the_sandbox(boxed: World) -> None:
    """The same root, the same workspace."""
    report = ran(boxed, "boxed")
    assert report.output.startswith("here\n")
    assert "workspace" in report.output
    assert ran(boxed, "read_file", path="new").output == "here\n"


def test_one_run_does_not_see_anothers_files(boxed: World) -> None:
    """Workspaces are of runs."""
    ran(boxed, "write_file", path="mine", content="x")
    assert "mine" not in boxed.ran("list_files", run_id="another run", dispatch="another").output


def test_its_tmp_has_a_bound(boxed: World) -> None:
    """It lies in memory, and fills up before the host does."""
    report = code(boxed, "bash", "head -c 400000000 /dev/zero > /tmp/large")
    assert (report.outcome, "No space left" in report.output) == ("failed", True)


def test_a_spool_that_only_its_owner_may_enter_will_do(tmp_path: Path) -> None:
    """Where namespaces are root's, the way to a tool's folders is opened for its user alone."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    made = World(closed / "spool", [command("pwd", "sh", "-c", "echo x > y && cat y; id -u", workspace=True)])
    report = made.ran("pwd")
    made.tools.close()
    if os.geteuid() == 0 and made.tools.isolation.namespaces != "root":
        pytest.skip("needs root's namespaces")
    assert (report.outcome, report.output.splitlines()[0]) == ("succeeded", "x")
    assert int(report.output.splitlines()[1]) == os.geteuid() or os.geteuid() == 0
