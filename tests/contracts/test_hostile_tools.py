"""Tools that do all they can to hurt: each gives one clear report, nothing of it is left, and the next call works."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runfold.adapters.toolbox import Tool
from runfold.events.types import ToolReported
from runfold.runner.contract import Bounds
from tests.contracts.process_worlds import World, command, descriptors, processes, python, runners, spool_folder, until

FORKS = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
IGNORES = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: time.sleep(1)"
LISTENS = """
import os, signal, sys, time
child = os.fork()
def end(*_):
    if child: os.wait()
    print("saved" if child else "child", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
while True: time.sleep(0.1)
"""
CLOSES = "import os, time\nos.closerange(0, 3)\ntime.sleep(0.2)\nos._exit(4)"
DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(1)
    os._exit(0)
os.wait()
print("left a daemon")
"""
FILLS = """
import os
import subprocess
file = os.open(os.environ["TMPDIR"] + "/large", os.O_WRONLY | os.O_CREAT)
while True: os.write(file, bytes(1 << 20))
"""
ESCAPES = """
for path in ("/etc/runfold-escaped", "/usr/runfold-escaped", "/var/lib/runfold-escaped", "../escaped", "/proc/1/oom_score_adj"):
    try: open(path, "w").write("1")
    except OSError as error: print(path, error.strerror)
    else: print(path, "WRITTEN")
"""
PARENT = (
    "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\nprint('it lives', flush=True)\ntime.sleep(0.1)"
)
EATS = "try: bytearray(1 << 30)\nexcept MemoryError: print('no memory')"
SPINS = "while True: pass"
SMALL = Bounds(processes=24)

TOOLS: list[Tool] = [
    python("forks", FORKS, bounds=SMALL),
    command("floods", "sh", "-c", "head -c 2147483648 /dev/zero | tr '\\0' x"),
    python("ignores", IGNORES),
    python("closes", CLOSES),
    python("listens", LISTENS),
    python("daemon", DAEMON),
    python("fills", FILLS, bounds=Bounds(file_bytes=10_000_000)),
    python("escapes", ESCAPES),
    python("parent", PARENT),
    python("eats", EATS, bounds=Bounds(memory_bytes=500_000_000)),
    python("spins", SPINS, bounds=Bounds(cpu_s=1)),
    command("bytes", "printf", "a\\0b\\377c\\033[31mred\\033[0m\\r\\n"),
    command("silent", "true"),
    command("one_line", "sh", "-c", "head -c 10000000 /dev/zero | tr '\\0' y"),
    command("three", "sh", "-c", "echo why >&2; exit 3"),
    command("not_executable", "/etc/passwd"),
    command("missing", "/nowhere/at-all"),
    command("killed", "sh", "-c", "kill -9 $$"),
    python("opens", "import resource\nfiles = []\ntry:\n while True: files.append(open('/dev/null'))\nexcept OSError: print(len(files) < 70)", bounds=Bounds(open_files=64)),
]  # fmt: skip


@pytest.fixture(scope="module", params=["auto", "none"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """With all that this host offers, and without namespaces."""
    with spool_folder() as folder:
        made = World(folder, TOOLS, isolation=request.param)
        yield made
        made.tools.close()
        assert runners(folder) == []


def hurt(world: World, tool: str, **options: object) -> ToolReported:
    """One report, and nothing left: no process, no file outside the call's folder, no descriptor. The next call works."""
    before = descriptors()
    start = world.start(tool, **options)
    report = world.next()
    assert (report.dispatch, report.nonce, report.source, report.position) == (start.dispatch, "n1", "here", 3)
    until(lambda: not processes(start.dispatch), "everything of the tool is ended")
    until(lambda: not runners(world.folder), "its runner is ended")
    assert world.ran("hello", dispatch=f"after-{tool}").output == "hello\n"
    assert world.reports.empty()
    assert descriptors() <= before
    assert sorted(path.name for path in world.call(start).iterdir()) == [
        "result.json", "root", "runner.json", "runner.log", "spec.json", "stderr", "stdout",
    ]  # fmt: skip
    assert (world.call(start) / "runner.log").read_text() == ""
    world.tools.stop(start.dispatch)
    until(lambda: not world.call(start).exists(), "a closed call's traces are removed")
    return report


@pytest.mark.requirement("R16")
def test_a_fork_bomb_is_bounded_and_ended(world: World) -> None:
    """The limit on processes is the tool's own; at its time limit all of them are ended."""
    report = hurt(world, "forks", time_limit_s=1)
    assert (report.outcome, report.output) == ("failed", "[it ran past its time limit of 1 s]")


@pytest.mark.slow
@pytest.mark.requirement("R20")
def test_two_gigabytes_of_output_are_counted_and_not_kept(world: World) -> None:
    """The model sees both ends and the size; what is kept has a bound."""
    report = hurt(world, "floods", time_limit_s=100)
    assert (report.outcome, report.output_bytes) == ("succeeded", 2_147_483_648)
    assert len(report.output) < 70_000
    assert "2,147,483,648 bytes in all" in report.output
    assert report.output_ref is not None
    assert 16 * 1024**2 < report.output_ref.size_bytes < 17 * 1024**2
    assert "bytes were not kept" in world.blobs.get(report.output_ref).decode()


@pytest.mark.requirement("R16")
def test_a_tool_that_ignores_term_is_killed(world: World) -> None:
    """What it had printed is told, with the limit that it ran into."""
    report = hurt(world, "ignores", time_limit_s=1)
    assert (report.outcome, report.output) == ("failed", "[it ran past its time limit of 1 s]\ndeaf\n")
    assert report.exit_code in (137, None)
    assert 2_000 <= report.duration_ms < 20_000


def test_a_tool_that_listens_may_end_itself(world: World) -> None:
    """TERM comes first, to all of it, and a moment to act on it."""
    report = hurt(world, "listens", time_limit_s=1)
    assert (report.outcome, report.output) == ("failed", "[it ran past its time limit of 1 s]\nchild\nsaved\n")


def test_closed_descriptors_are_not_the_end(world: World) -> None:
    """A tool is over when its process is."""
    report = hurt(world, "closes")
    assert (report.outcome, report.output, report.exit_code) == ("failed", "[it ended with exit status 4]", 4)


def test_a_daemon_ends_with_its_call(world: World) -> None:
    """A session of its own, a parent that is gone and deaf ears do not save it."""
    report = hurt(world, "daemon")
    assert (report.outcome, report.output) == ("succeeded", "left a daemon\n")


def test_a_file_cannot_grow_without_bound(world: World) -> None:
    """The bound is named, or the tool's own write fails."""
    report = hurt(world, "fills")
    assert report.outcome == "failed"
    assert "File too large" in report.output or "more than 10,000,000 bytes" in report.output


@pytest.mark.skipif(os.geteuid() != 0, reason="without another user, the host's permissions are the tool's")
def test_writing_outside_fails(world: World) -> None:
    """The tool's own user owns nothing on the host."""
    report = hurt(world, "escapes")
    assert report.outcome == "succeeded"
    assert "WRITTEN" not in report.output
    assert not [path for path in ("/etc", "/usr", "/var/lib") if Path(path, "runfold-escaped").exists()]


def test_killing_its_parent_gains_nothing(world: World) -> None:
    """The parent is out of its reach; where it is not, the call is lost and says so."""
    isolation = world.tools.isolation
    is_safe = isolation.namespaces or isolation.has_uids
    report = hurt(world, "parent") if is_safe else world.ran("parent")
    assert (
        ("it lives" in report.output or "not permitted" in report.output) if is_safe else "is unknown" in report.output
    )
    until(lambda: not processes("d-parent"), "everything of the tool is ended")


def test_memory_and_processor_time_have_bounds(world: World) -> None:
    """An allocation fails; endless work is ended, and the limit is named."""
    assert hurt(world, "eats").output == "no memory\n"
    report = hurt(world, "spins")
    assert (report.outcome, report.output) == ("failed", "[it used up its 1 s of processor time]")
    assert hurt(world, "opens").output == "True\n"


def test_any_bytes_become_text_that_every_reader_takes(world: World) -> None:
    """NUL and what is no UTF-8 are replaced, the rest stays."""
    report = hurt(world, "bytes")
    assert (report.outcome, report.output) == ("succeeded", "a\ufffdb\ufffdc\x1b[31mred\x1b[0m\r\n")
    report.output.encode()


def test_no_output_is_an_outcome(world: World) -> None:
    """Success, with nothing said."""
    report = hurt(world, "silent")
    assert (report.outcome, report.output, report.output_bytes, report.exit_code) == ("succeeded", "", 0, 0)


@pytest.mark.requirement("R20")
def test_ten_megabytes_in_one_line_keep_both_ends(world: World) -> None:
    """The model sees both ends and the size; the whole is in the blob store."""
    report = hurt(world, "one_line")
    assert (report.outcome, report.output_bytes) == ("succeeded", 10_000_000)
    assert "10,000,000 bytes in all" in report.output
    assert report.output_ref is not None
    assert world.blobs.get(report.output_ref) == b"y" * 10_000_000


@pytest.mark.requirement("R17")
@pytest.mark.parametrize(
    ("tool", "exit_code", "said"),
    [
        ("three", 3, "[it ended with exit status 3]\n[stderr]\nwhy\n"),
        ("not_executable", 126, "['/etc/passwd' cannot be started: Permission denied]"),
        ("missing", 127, "['/nowhere/at-all' cannot be started: No such file or directory]"),
        ("killed", 137, "[it was ended by signal 9]"),
    ],
)
def test_a_failure_is_a_result_for_the_model(world: World, tool: str, exit_code: int, said: str) -> None:
    """It says what happened, in one sentence, with the exit status."""
    report = hurt(world, tool)
    assert (report.outcome, report.exit_code, report.output) == ("failed", exit_code, said)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_takes_no_outcome_along(tmp_path: Path) -> None:
    """Room for the result is taken before the tool starts; what cannot start is told, too."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=711", "tmpfs", tmp_path], check=False)
    if mounted.returncode:
        pytest.skip("cannot mount")
    try:
        fills = command("fills_all", "sh", "-c", "head -c 30000000 /dev/zero > large; echo full", workspace=True)
        small = World(tmp_path, [*TOOLS, fills])
        assert small.ran("fills_all").output == "full\n"
        report = small.ran("hello")
        assert (report.outcome, "could not be started" in report.output) == ("failed", True)
        next(tmp_path.glob("workspaces/*/large")).unlink()
        flooded = small.ran("one_line")
        assert (flooded.outcome, flooded.output_bytes) == ("succeeded", 10_000_000)
        small.tools.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)
