"""Tools in processes of their own: what they are given, what is reported of them, how they are stopped."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runfold.adapters.blobs import MemoryBlobs
from runfold.adapters.processes import Isolation, ProcessSettings, isolation
from runfold.events.types import BlobRef
from runfold.ports import Permanent
from runfold.runner import contract
from runfold.runner.contract import Bounds
from tests.contracts import function_tools
from tests.contracts.process_worlds import PYTHON, World, command, processes, python, runners, spool_folder, until

TICKS = "import time\nfor n in range(100000): print(n, flush=True); time.sleep(0.005)"
TOOLS = [
    *function_tools.TOOLS,
    command("echo", "cat"),
    command("env", "env", secrets=("A_SECRET",)),
    command("needs", "true", secrets=("NOT_SET",)),
    command("descriptors", "ls", "-l", "/proc/self/fd"),
    command("group", PYTHON, "-c", "import os; print(os.getpid() == os.getpgid(0) == os.getsid(0), os.getcwd() == os.environ['TMPDIR'])"),
    command("both", "sh", "-c", "echo out; echo err >&2"),
    command("only_stderr", "sh", "-c", "echo err >&2"),
    python("ticks", TICKS),
    command("shared", "sh", "-c", "echo x >> log; cat log", workspace=True),
    command("boxed", "sh", "-c", "pwd; ls /home /var /work 2>&1; echo x > new && echo written", workspace=True, sandbox=True),
    command("capped", "sh", "-c", "seq 1 100000", bounds=Bounds(output_bytes=1000)),
    command("reopens", "sh", "-c", "cat /dev/stdin > /dev/stdout; echo x > /dev/stderr"),
    command("deaf", "sh", "-c", "trap '' TERM; echo deaf; while true; do sleep 0.1; done"),
    command("umlaut", "sh", "-c", "yes ä | head -n 100000 | tr -d '\\n'"),
]  # fmt: skip


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with spool_folder() as folder:
        made = World(folder, TOOLS)
        yield made
        made.tools.close()


# ---- what a tool is given


@pytest.mark.requirement("R21")
def test_a_command_gets_its_arguments_as_json(world: World) -> None:
    """On standard input, as they were checked."""
    report = world.ran("echo", '{"b": 1, "a": "ü"}')
    assert (report.outcome, report.output, report.exit_code) == ("succeeded", '{"b": 1, "a": "ü"}', 0)
    assert (report.model_call, report.position, report.dispatch, report.source) == ("m", 3, "d-echo", "here")


@pytest.mark.requirement("R13")
def test_the_environment_holds_the_call_and_nothing_of_ours(world: World) -> None:
    """Named secrets, the call's identity for tools that keep it, and what every program needs."""
    found = dict(line.split("=", 1) for line in world.ran("env").output.splitlines())
    assert found.pop("A_SECRET") == "hidden"
    assert found.pop("RUNFOLD_IDEMPOTENCY_KEY") == "key"
    assert (found.pop("RUNFOLD_DISPATCH"), found.pop("RUNFOLD_RUN_ID"), found.pop("RUNFOLD_ATTEMPT")) == (
        "d-env",
        "run",
        "2",
    )
    assert sorted(found) == ["HOME", "LANG", "PATH", "TMPDIR"]


def test_secrets_are_never_written_down(world: World) -> None:
    """The plan on disk has their names; the runner's environment has them."""
    start = world.start("env", dispatch="secret")
    world.next()
    written = b"".join(
        path.read_bytes()
        for path in world.call(start).iterdir()
        if path.name in ("spec.json", "runner.json", "runner.log")
    )
    assert b"A_SECRET" in written
    assert b"hidden" not in written


def test_a_secret_that_is_not_set_keeps_the_tool_from_starting(world: World) -> None:
    """The report names the variable."""
    report = world.tools.start(world.asked("needs"), world.reports.put)
    assert report is not None
    assert (report.outcome, "NOT_SET" in report.output) == ("failed", True)


def test_a_tool_has_its_own_session_folder_and_descriptors(world: World) -> None:
    """It inherits nothing but standard input and output."""
    assert world.ran("group").output == "True True\n"
    lines = [line.split() for line in world.ran("descriptors").output.splitlines()[1:]]
    opened = {line[line.index("->") - 1]: line[line.index("->") + 1].partition(":")[0] for line in lines}
    assert {number: what for number, what in opened.items() if not what.startswith("/proc")} == {
        "0": "/memfd", "1": "pipe", "2": "pipe",
    }  # fmt: skip


def test_a_tool_may_open_its_own_streams_anew(world: World) -> None:
    """Scripts write to /dev/stderr; the streams are those of the tool's user."""
    assert world.ran("reopens", '{"a":1}').output == '{"a":1}'


@pytest.mark.requirement("R18")
def test_a_function_is_called_as_its_hints_say(world: World) -> None:
    """In another process, with the call's context; what it prints is not its result."""
    report = world.ran("shows", '{"color": "red", "number": 3.0}')
    found = json.loads(report.output)
    assert found.pop("pid") != os.getpid()
    assert found == {
        "color": "Color", "number": 3, "call": ["run", "d-shows", 2, "key"], "secret": "hidden", "point": {"x": 1},
        "others": ["A_SECRET", "HOME", "LANG", "PATH", "TMPDIR"],
    }  # fmt: skip
    assert any(piece[2] == "stdout" and "not the result" in piece[4] for piece in world.shown)


@pytest.mark.requirement("R17")
@pytest.mark.parametrize(
    ("tool", "outcome", "output"),
    [
        ("raises", "failed", "LookupError: nothing of that name"),
        ("vanishes", "failed", "[it ended without a result]"),
        ("waits", "succeeded", "waited"),
        ("nothing", "succeeded", ""),
    ],
)
def test_whatever_a_function_does_is_its_outcome(world: World, tool: str, outcome: str, output: str) -> None:
    """One report, in one sentence."""
    report = world.ran(tool)
    assert (report.outcome, report.output) == (outcome, output)


def test_a_tool_that_is_not_deployed_any_more_is_reported(world: World) -> None:
    """At once: nothing is started."""
    report = world.tools.start(world.asked("nowhere"), world.reports.put)
    assert report is not None
    assert (report.outcome, "not deployed" in report.output) == ("failed", True)


# ---- what is reported


def test_what_the_model_sees_of_both_streams(world: World) -> None:
    """A command's result is its standard output; code shows all it said."""
    assert world.ran("both").output == "out\n"
    assert world.ran("only_stderr").output == ""
    code = {"language": "bash", "code": "echo out; echo err >&2"}
    assert world.ran("execute_code", json.dumps(code)).output == "out\n[stderr]\nerr\n"


@pytest.mark.requirement("R20")
def test_output_beyond_the_cap_is_said_to_be_missing(world: World) -> None:
    """Its end is there, and its size is right."""
    whole = "".join(f"{n}\n" for n in range(1, 100_001))
    report = world.ran("capped")
    assert report.output_bytes == len(whole)
    assert report.output.startswith("1\n2\n3\n")
    assert report.output.endswith("99999\n100000\n")
    assert f"{len(whole):,} bytes in all" in report.output
    assert report.output_ref is not None
    assert "bytes were not kept" in world.blobs.get(report.output_ref).decode()


@pytest.mark.requirement("R20")
def test_a_long_output_is_cut_between_characters_and_kept_whole(world: World) -> None:
    """Two bytes a character here, and none is halved."""
    report = world.ran("umlaut")
    assert "\ufffd" not in report.output
    assert report.output_bytes == 200_000
    assert report.output_ref is not None
    assert world.blobs.get(report.output_ref).decode() == "ä" * 100_000


def test_a_blob_store_that_is_away_does_not_swallow_the_outcome(world: World) -> None:
    """The tool ran: its report says so, and what could not be kept."""

    class NoBlobs(MemoryBlobs):
        def put(self, payload: bytes) -> BlobRef:
            raise OSError("no space")

    with spool_folder() as folder:
        other = World(folder, TOOLS, blobs=NoBlobs())
        report = other.ran("umlaut")
        other.tools.close()
    assert (report.outcome, report.output_ref, report.output_bytes) == ("succeeded", None, 200_000)
    assert "could not be kept: no space" in report.output


def test_output_is_shown_while_the_tool_runs(world: World) -> None:
    """In pieces whose offsets fit together, until the tool is stopped."""
    start = world.start("ticks")

    def pieces() -> list[tuple[str, str, str, int, str]]:
        return [piece for piece in list(world.shown) if piece[0] == start.dispatch]

    until(lambda: len(pieces()) >= 4, "four pieces")
    assert world.reports.empty()
    world.tools.stop(start.dispatch)
    world.next()
    at = 0
    for dispatch, nonce, stream, offset, text in pieces():
        assert (dispatch, nonce, stream, offset) == (start.dispatch, "n1", "stdout", at)
        at += len(text)
    assert pieces()[0][4].startswith("0\n1\n")


# ---- stopping


@pytest.mark.requirement("R27")
def test_a_stopped_tool_ends_and_says_so(world: World) -> None:
    """The report comes late, and tells what was printed by then."""
    start = world.start("ticks", dispatch="stopped")
    until(lambda: processes("stopped"), "the tool runs")
    world.tools.stop(start.dispatch)
    report = world.next()
    assert (report.outcome, report.output.startswith("[it was stopped")) == ("failed", True)
    until(lambda: not processes("stopped"), "everything of the tool is ended")


@pytest.mark.parametrize("signals", [(), (signal.SIGSTOP,)])
def test_neither_deaf_tools_nor_runners_that_hang_survive_being_stopped(
    world: World, signals: tuple[signal.Signals, ...]
) -> None:
    """A runner kills a tool that ignores TERM; a runner that does not answer is killed, and the kernel ends its tool."""
    start = world.start("deaf", dispatch=f"deaf{len(signals)}")
    until(lambda: [piece for piece in list(world.shown) if piece[0] == start.dispatch], "it has set its trap")
    for number in signals:
        os.kill(json.loads((world.call(start) / contract.RUNNER).read_text())["pid"], number)
    began = time.monotonic()
    world.tools.stop(start.dispatch)
    report = world.next()
    until(lambda: not processes(start.dispatch), "everything of the tool is ended")
    assert time.monotonic() - began < 30, "two seconds, on a machine that has time"
    assert report.outcome == "failed"
    assert report.output.startswith("[it was stopped") or "is unknown" in report.output


def test_a_stopped_call_that_has_not_begun_never_begins(world: World) -> None:
    """It waits for another to end, is closed, and reports nothing."""
    with spool_folder() as folder:
        small = World(folder, TOOLS, at_once_max=1)
        first = small.start("ticks", dispatch="first")
        until(lambda: processes("first"), "the first runs")
        second, third = small.start("echo", dispatch="second"), small.start("echo", dispatch="third")
        small.tools.stop(second.dispatch)
        small.tools.stop(first.dispatch)
        assert {small.next().dispatch, small.next().dispatch} == {first.dispatch, third.dispatch}
        assert not (small.call(second) / "result.json").exists()
        small.tools.close()


@pytest.mark.requirement("R16")
def test_a_time_limit_is_the_tools_own(world: World) -> None:
    """It ends the process, and the report names it."""
    report = world.ran("sleeps", time_limit_s=1)
    assert (report.outcome, report.output) == ("failed", "[it ran past its time limit of 1 s]")
    until(lambda: not processes("d-sleeps"), "everything of the tool is ended")


def test_starting_twice_starts_once(world: World) -> None:
    """The folder of a claim is made once."""
    start = world.start("shared", run_id="twice", dispatch="twice")
    assert world.tools.start(start, world.reports.put) is None
    assert world.next().output == "x\n"
    assert world.ran("shared", run_id="twice", dispatch="again").output == "x\nx\n"


# ---- where it runs


def test_runs_share_a_workspace_and_no_two_runs_do(world: World) -> None:
    """It stays from call to call."""
    assert world.ran("shared", run_id="a", dispatch="a1").output == "x\n"
    assert world.ran("shared", run_id="a", dispatch="a2").output == "x\nx\n"
    assert world.ran("shared", run_id="b", dispatch="b1").output == "x\n"


def test_what_a_host_lacks_is_said_once(world: World) -> None:
    """At the start, in words; where it is required, nothing starts."""
    assert world.told == ([f"process tools: {world.tools.isolation.lacks}"] if world.tools.isolation.lacks else [])
    with spool_folder() as folder:
        without = World(folder, TOOLS, isolation="none")
        assert len(without.told) == 1
        assert "can read the host's files and use its network" in without.told[0]
        without.tools.close()
        with pytest.raises(Permanent, match="isolation is one of"):
            isolation(ProcessSettings(spool=folder, isolation="some"))


def test_isolation_is_what_was_tried() -> None:
    """Root makes namespaces itself and has users to give; everybody else needs a user namespace."""
    with spool_folder() as folder:
        found = isolation(ProcessSettings(spool=folder))
    assert found.namespaces in (("root", "user", "") if os.geteuid() == 0 else ("user", ""))
    assert not (found.has_uids and os.geteuid() != 0)
    assert bool(found.lacks) == (not found.namespaces or (os.geteuid() == 0 and not found.has_uids))
    assert Isolation(namespaces="", has_uids=False, reasons=("because",)).lacks.endswith("(because)")


def test_a_folder_that_cannot_be_used_is_refused() -> None:
    """With its name, before anything starts."""
    with pytest.raises(Permanent, match="/proc/nowhere"):
        World(Path("/proc/nowhere"), TOOLS)


def test_nothing_is_left_of_all_these(world: World) -> None:
    """No process, no scratch folder."""
    until(lambda: not runners(world.folder), "all runners are ended")
    assert not list(world.folder.glob("calls/*/scratch/*"))
