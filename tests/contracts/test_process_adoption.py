"""An executor dies while its tools run: the next one on the host waits for them and reports each once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runfold.adapters.processes import BOOT, SOURCES
from runfold.events.types import ToolReported
from runfold.runner import contract
from tests.contracts.adoption_tools import TOOLS
from tests.contracts.process_worlds import World, processes, runners, spool_folder, until

ROOT = Path(__file__).parents[2]
OWNER = Path(__file__).with_name("process_owner.py")


@pytest.fixture(params=["auto", "none"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spool() -> Iterator[Path]:
    with spool_folder() as folder:
        yield folder
        until(lambda: not runners(folder), "all runners are ended")


def running_owner(spool: Path, reports: Path, isolation: str, *calls: str) -> subprocess.Popen[bytes]:
    """An executor that started these calls, each of which runs or has ended."""
    owner = subprocess.Popen(
        [sys.executable, OWNER, spool, reports, isolation, *calls],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "services"), str(ROOT)])},
        start_new_session=True,
    )
    until((reports / "started").exists, "the owner is there")
    until(lambda: len(list(spool.glob("calls/*/stdout"))) == len(calls), "all calls run")
    until(lambda: all(path.read_text() for path in spool.glob("calls/*/stdout")), "all calls have said something")
    return owner


def killed_owner(spool: Path, reports: Path, isolation: str, *calls: str) -> None:
    """The same, and then it was killed with all of its session, as a terminal that is closed does."""
    owner = running_owner(spool, reports, isolation, *calls)
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()


def go(world: World) -> None:
    """Let the waiting tool end."""
    workspace = world.tools._spool.workspace("run")
    (workspace / "go").touch()


def times_ran(world: World) -> int:
    return len((world.tools._spool.workspace("run") / "ran").read_text().splitlines())


@pytest.mark.requirement("R12")
@pytest.mark.requirement("R24")
def test_a_running_tool_is_adopted_and_reported_once(spool: Path, tmp_path: Path, isolation: str) -> None:
    """Its runner goes on without an executor; the id of the execution, dispatch and nonce, finds it again."""
    killed_owner(spool, tmp_path, isolation, "waits=d1")
    world = World(spool, TOOLS, isolation=isolation)
    start = world.asked("waits", dispatch="d1")
    assert world.tools.adopt(start, world.tools.identity, world.reports.put)
    assert world.tools.adopt(start, world.tools.identity, world.reports.put), "asked again, it is still watched"
    assert world.reports.empty()
    go(world)
    report = world.next()
    assert (report.dispatch, report.nonce, report.outcome, report.output) == ("d1", "n1", "succeeded", "begun\ndone\n")
    assert times_ran(world) == 1
    assert ("d1", "n1", "stdout", 0) in {piece[:4] for piece in world.shown}, "its output is shown again"
    world.tools.close()
    assert world.reports.empty()


def test_an_executor_that_is_frozen_keeps_nobody_from_adopting(spool: Path, tmp_path: Path) -> None:
    """A runner that ended, and whose parent takes no notice, is over all the same."""
    owner = running_owner(spool, tmp_path, "none", "waits=d1")
    owner.send_signal(signal.SIGSTOP)
    world = World(spool, TOOLS, isolation="none")
    start = world.asked("waits", dispatch="d1")
    assert world.tools.adopt(start, world.tools.identity, world.reports.put)
    go(world)
    assert world.next().output == "begun\ndone\n"
    assert world.tools.adopt(start, world.tools.identity, world.reports.put)
    assert world.next().output == "begun\ndone\n"
    world.tools.close()
    owner.kill()
    owner.wait()


@pytest.mark.requirement("R12")
def test_a_tool_that_ended_meanwhile_is_harvested(spool: Path, tmp_path: Path, isolation: str) -> None:
    """The result file is there, whoever was alive when it was written; asked again, it is told again."""
    killed_owner(spool, tmp_path, isolation, "waits=d1", "quick=d2")
    world = World(spool, TOOLS, isolation=isolation)
    go(world)
    until(lambda: not runners(spool), "both ended with nobody watching")
    for dispatch, tool in (("d1", "waits"), ("d2", "quick")):
        assert world.tools.adopt(world.asked(tool, dispatch=dispatch), "somebody", world.reports.put)
    found = {report.dispatch: report.output for report in (world.next(), world.next())}
    assert found == {"d1": "begun\ndone\n", "d2": "quick\n"}
    assert world.tools.adopt(world.asked("quick", dispatch="d2"), "somebody", world.reports.put)
    assert world.next().output == "quick\n"
    world.tools.close()


def test_a_tool_is_stopped_by_an_executor_that_never_saw_it(spool: Path, tmp_path: Path, isolation: str) -> None:
    """Its call was closed while the first executor was away."""
    killed_owner(spool, tmp_path, isolation, "waits=d1")
    world = World(spool, TOOLS, isolation=isolation)
    world.tools.stop("d1")
    until(lambda: not processes("d1") and not runners(spool), "the tool is ended")
    world.tools.close()


def test_closing_lets_tools_go_on(spool: Path, isolation: str) -> None:
    """An executor that ends in good order leaves its tools to the next one."""
    first = World(spool, TOOLS, isolation=isolation)
    start = first.start("waits")
    until(lambda: times_ran(first) if (first.tools._spool.workspace("run") / "ran").exists() else 0, "it runs")
    first.tools.close()
    second = World(spool, TOOLS, isolation=isolation)
    assert second.tools.adopt(start, first.tools.identity, second.reports.put)
    go(second)
    assert second.next().output == "begun\ndone\n"
    assert first.reports.empty()
    second.tools.close()


# ---- what is not there


def test_nothing_is_known_of_what_was_never_here(spool: Path) -> None:
    """Neither of another dispatch nor of another claim of the same one."""
    world = World(spool, TOOLS)
    start = world.start("quick")
    world.next()
    assert not world.tools.adopt(world.asked("quick", dispatch="other"), "x", world.reports.put)
    assert not world.tools.adopt(world.asked("quick", nonce="n2"), "x", world.reports.put)
    assert world.tools.adopt(start, "x", world.reports.put)
    world.next()
    world.tools.close()


@pytest.mark.requirement("R11")
def test_a_runner_that_was_killed_leaves_an_unknown_outcome(spool: Path, isolation: str) -> None:
    """Whoever watches reports that; whoever comes later is told that it is gone. The tool itself ends with its runner."""
    world = World(spool, TOOLS, isolation=isolation)
    start = world.start("waits")
    until(lambda: (world.call(start) / contract.RUNNER).exists() and processes(start.dispatch), "it runs")
    runner = json.loads((world.call(start) / contract.RUNNER).read_text())
    os.kill(runner["pid"], signal.SIGKILL)
    report = world.next()
    assert (report.outcome, "is unknown" in report.output) == ("failed", True)
    until(lambda: not processes(start.dispatch), "the tool is ended with its runner")
    assert not world.tools.adopt(start, world.tools.identity, world.reports.put)
    world.tools.close()


@pytest.mark.requirement("R11")
def test_a_tool_ends_with_its_runner_though_nobody_watches(spool: Path, isolation: str) -> None:
    """The kernel sees to it: what nobody watches cannot be stopped, and its result would never be known."""
    world = World(spool, TOOLS, isolation=isolation)
    start = world.start("waits")
    until(lambda: (world.call(start) / contract.STDOUT).exists() and processes(start.dispatch), "it runs")
    until((world.call(start) / contract.STDOUT).read_text, "it has said something")
    world.tools.close()
    os.kill(json.loads((world.call(start) / contract.RUNNER).read_text())["pid"], signal.SIGKILL)
    until(lambda: not processes(start.dispatch), "the tool is ended with its runner")


def test_a_second_runner_does_nothing(spool: Path) -> None:
    """The first that says who it is has the call, whoever started the other."""
    world = World(spool, TOOLS)
    start = world.start("waits")
    until((world.call(start) / contract.STDOUT).exists, "it runs")
    second = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BOOT, SOURCES, world.call(start)], timeout=60, check=False
    )
    assert second.returncode == contract.TAKEN
    go(world)
    assert world.next().output == "begun\ndone\n"
    assert times_ran(world) == 1
    world.tools.close()


def test_a_process_that_got_the_runners_id_is_not_mistaken_for_it(spool: Path) -> None:
    """The id counts only with the time its process began: this process is alive, and is not the runner."""
    world = World(spool, TOOLS)
    start = world.asked("waits")
    world.tools._spool.prepare(world.tools._plan(start, world.tools._tools["waits"]))
    began = contract.start_time(os.getpid())
    assert began is not None
    me = {"pid": os.getpid(), "start_time": began - 1, "boot_id": contract.boot_id(), "nonce": "n1"}
    (world.call(start) / contract.RUNNER).write_text(json.dumps(me))
    assert not world.tools.adopt(start, world.tools.identity, world.reports.put)
    (world.call(start) / contract.RUNNER).write_text(json.dumps({**me, "start_time": began, "boot_id": "before"}))
    assert not world.tools.adopt(start, world.tools.identity, world.reports.put)
    world.tools.stop(start.dispatch)
    until(lambda: not world.call(start).exists(), "its traces are removed")
    world.tools.close()


@pytest.mark.requirement("R12")
def test_a_call_that_was_prepared_and_never_begun_begins_once(spool: Path) -> None:
    """Its executor died in between. The next one starts it; of two runners, one takes it."""
    world = World(spool, TOOLS)
    start = world.asked("quick")
    world.tools._spool.prepare(world.tools._plan(start, world.tools._tools["quick"]))
    other = World(spool, TOOLS)
    reports: list[ToolReported] = []
    assert world.tools.adopt(start, "x", reports.append)
    assert other.tools.adopt(start, "x", reports.append)
    until(lambda: len(reports) == 2, "both were told")
    assert {report.output for report in reports} == {"quick\n"}
    assert times_ran(world) == 1
    for each in (world, other):
        each.tools.close()


def test_identities_say_where_a_call_may_be_found(spool: Path) -> None:
    """The same host and the same spool, under any executor's name; nobody else."""
    world, other = World(spool, TOOLS), World(spool, TOOLS, name="another")
    assert other.tools.is_here(world.tools.identity)
    assert world.tools.identity != other.tools.identity
    with spool_folder() as elsewhere:
        third = World(elsewhere, TOOLS)
        assert not third.tools.is_here(world.tools.identity)
        third.tools.close()
    for process in ("", "pod/x", "host/boot/spool/name", world.tools.identity.replace("/", "-")):
        assert not world.tools.is_here(process)
    for each in (world, other):
        each.tools.close()


def test_old_traces_are_swept(spool: Path) -> None:
    """Calls that ended and workspaces that nobody used for long go; what runs stays."""
    world = World(spool, TOOLS)
    running, ended = world.start("waits", dispatch="d1"), world.start("quick", dispatch="d2", run_id="other")
    world.next()
    until(lambda: processes("d1"), "it runs")
    for path in spool.glob("*/*"):
        os.utime(path, (0, 0))
    os.utime(world.tools._spool.workspace("run"))
    world.tools._spool.sweep(3600, 3600)
    assert (world.call(running).exists(), world.call(ended).exists()) == (True, False)
    assert not world.tools._spool.workspace("other").exists()
    go(world)
    assert world.next().output == "begun\ndone\n"
    world.tools.close()
