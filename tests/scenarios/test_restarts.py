"""Executors that die in the middle of a turn, and hosts whose clocks are wrong."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.scenarios.replies import DONE, call, calls
from tests.scenarios.world import ROUNDING_MS, Run, World

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
LATE_MS_MAX = 30_000  # a process has to start, read the log and join its group


@pytest.mark.scenario("S18")
@pytest.mark.requirement("R6")
@pytest.mark.requirement("R36")
def test_a_death_after_some_of_the_results(unsafe: World) -> None:
    """After none, one, two of three, or after the last and before the next model call: that call is made once, by the next."""
    unsafe.restart()
    runs = [unsafe.run([calls(*[call("elsewhere")] * 3), DONE]) for _ in range(4)]
    for known, run in enumerate(runs):
        run.until("ToolDispatchStarted", 3)
        for position in range(min(known, 2)):
            run.report(position, f"result {position}")
    for known, run in enumerate(runs):
        unsafe.pass_by(run.records[0].partition)
        assert len(run.seen("ToolReported")) == min(known, 2)
    unsafe.kill()
    runs[3].report(2, "result 2")
    unsafe.executor()
    for known, run in enumerate(runs[:3]):
        for position in range(known, 3):
            run.report(position, f"result {position}")
    for run in runs:
        assert run.over().status == "completed"
        assert run.results(1) == ["result 0", "result 1", "result 2"]
        assert len(run.requests) == len(run.seen("ModelCallStarted")) == 2
        assert len(run.seen("ToolDispatchStarted")) == 3


@pytest.mark.scenario("S18")
@pytest.mark.requirement("R12")
@pytest.mark.requirement("R13")
def test_a_death_while_tools_run(unsafe: World) -> None:
    """Only missing work runs again, and only what was declared repeatable; the rest is told to be uncertain."""
    unsafe.restart()
    gate = unsafe.gate()
    wanted = [call("note", text="a"), call("fetch", gate=gate), call("hold", gate=gate)]
    run = unsafe.run([calls(*wanted), DONE])
    run.until("ToolReported")
    run.until_begun(3)
    unsafe.restart()
    run.until_begun(4)
    unsafe.open(gate)
    assert run.over().status == "completed"
    known, again, uncertain = run.results(1)
    assert (known, again) == ("noted a", f"fetched {gate}")
    assert "Whether it had its effect is not known" in uncertain
    assert sorted(run.done()) == ["fetch", "fetch", "hold", "note"]
    assert len({effect.key for effect in run.effects if effect.what == "fetch"}) == 1
    assert [each.attempt for each in run.events("ToolDispatchStarted") if each.tool == "fetch"] == [1, 2]
    assert len(run.requests) == 2


@pytest.mark.scenario("S19")
@pytest.mark.scenario("S22")
@pytest.mark.requirement("R25")
def test_people_decide_while_no_executor_lives(unsafe: World) -> None:
    """The first decision counts after the restart, too; a free call beside it is not run again."""
    unsafe.restart()
    decisions = {"yes": (True, True), "yes, no": (True, False), "no, yes": (False, True)}
    runs = {said: unsafe.run([calls(call("note", text="a"), call("pay", amount=5)), DONE]) for said in decisions}
    for run in runs.values():
        run.until("ToolReported")
        run.until("ApprovalRequired")
    unsafe.kill()
    for said, run in runs.items():
        for number, approved in enumerate(decisions[said]):
            run.decide(approved=approved, sender=f"tab {number}")
    unsafe.executor()
    for said, run in runs.items():
        assert run.over().status == "completed"
        assert run.results(1)[0] == "noted a"
        is_paid = decisions[said][0]
        assert run.results(1)[1] == ("paid 5" if is_paid else "Not started: a person rejected this call.")
        assert run.done() == (["note", "pay"] if is_paid else ["note"])


@pytest.mark.scenario("S38")
@pytest.mark.requirement("R30")
def test_hosts_whose_clocks_are_wrong(unsafe: World) -> None:
    """Limits are judged by the broker's stamps: on a host two hours ahead whose local time jumps, then on one behind."""
    jumps_at = datetime.now(UTC) + timedelta(seconds=2)
    unsafe.restart(wall_ahead_ms=2 * HOUR_MS, environment={"TZ": _zone_with_a_gap(jumps_at)})
    limit_ms = 4_000
    idle = unsafe.run([DONE], interactive=True, limits={"idle_ms": limit_ms})
    busy = unsafe.run([calls(call("elsewhere"))], limits={"run_ms": limit_ms})
    expiring = unsafe.run([DONE], expires_at_ms=time.time_ns() // 1_000_000 + HOUR_MS)
    began = {idle.id: idle.until("PhaseEntered"), busy.id: busy.until("ModelCallStarted")}
    assert expiring.over().status == "completed"
    unsafe.until(lambda: datetime.now(UTC) > jumps_at, "the local time jumps")
    for run in (idle, busy):
        unsafe.pass_by(run.records[0].partition)
    unsafe.restart(wall_ahead_ms=-2 * HOUR_MS, environment={"TZ": "Asia/Kolkata"})
    assert (idle.over().status, idle.over().kind) == ("completed", "idle")
    assert (busy.over().status, busy.over().kind) == ("timed_out", "run_limit")
    assert "4 s of active time" in busy.over().reason
    for run in (idle, busy):
        finished = run.seen("RunFinished")[0]
        assert limit_ms - ROUNDING_MS <= finished.time_ms - began[run.id].time_ms < limit_ms + LATE_MS_MAX
        assert run.over().finished_at_ms == finished.time_ms
        run.nothing_follows()
    ahead = [_written_ahead(run) for run in (idle, busy)]
    assert all(max(each) > timedelta(hours=1) > timedelta(hours=-1) > min(each) for each in ahead)


def _written_ahead(run: Run) -> list[timedelta]:
    """How far the times that people read are ahead of the broker's. Each names its zone, which is UTC."""
    found = []
    for each in run.records:
        written = datetime.fromisoformat(each.headers["ce_time"].decode())
        assert written.utcoffset() == timedelta(0)
        found.append(written - datetime.fromtimestamp(each.time_ms / 1000, UTC))
    return found


def _zone_with_a_gap(begin: datetime) -> str:
    """A time zone whose clocks go forward by two hours at this moment."""
    day = begin.timetuple().tm_yday - 1
    return f"STD0DST-2,{day}/{begin:%H:%M:%S},{(day + 100) % 365}/0"
