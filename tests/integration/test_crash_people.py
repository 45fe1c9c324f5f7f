"""The crash tests again, for runs that meet people, a child, a clock, a failing model, a pause and a limit."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from runfold.dev.stack import Stack
from runfold.events.types import RunRequested
from tests.integration.harness import Place, place
from tests.integration.oracle import problems
from tests.integration.people import People, people_problems

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.requirement("R25"),
    pytest.mark.requirement("R26"),
    pytest.mark.requirement("R27"),
    pytest.mark.requirement("R28"),
    pytest.mark.requirement("R31"),
    pytest.mark.requirement("R36"),
]
POINTS_MAX = 120
CRASHED = 137
STATUS = {"people": "completed", "limited": "limit_exceeded", "slow": "cancelled"}
STOPPED_S = 5.0  # TERM, two seconds, KILL; and a slow machine


def check(here: Place, runs: list[str], status: str, people: People) -> None:
    people.until(lambda: here.reported() >= set(runs), "every run over")
    children = {each.key for each in here.records if each.type == "RunRequested" and each.key not in runs}
    people.until(lambda: here.reported() >= children, "every child over")
    effects = here.effects()
    found = {run: wrong for run in runs if (wrong := people_problems(here.records, run, effects, status))}
    assert not found, found
    if status == "completed":  # else the children's share of the budget may not be enough for them either
        assert len(children) == len(runs)
        broken = {child: wrong for child in children if (wrong := problems(here.records, child, effects))}
        assert not broken, broken


def running(runs: list[str]) -> list[str]:
    """Processes of these runs' tools."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "environ").read_bytes().split(b"\0")
            found += [run for run in runs if f"RUNFOLD_RUN_ID={run}".encode() in words]
    return found


def ask(here: Place, run: str, agent: str) -> None:
    here.fact(run, RunRequested(task_id=run, agent=agent, input="go", limits={"depth": 1}), f"{run}-asked")
    here.producer.flush(30)


@pytest.mark.parametrize(
    ("agent", "after"),
    [("people", "batch"), ("people", "append"), ("limited", "batch"), ("slow", "batch"), ("slow", "append")],
)
def test_a_crash_at_every_log_end(
    kafka_bootstrap: str, topic_prefix: str, tmp_path: Path, agent: str, after: str
) -> None:
    """The k-th process ends at the k-th log end of run k; the next one carries that run on, and is the next to end."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here, intake(here):
        people = People(here)
        runs: list[str] = []
        for number in range(1, POINTS_MAX):
            run = f"run-{number}"
            runs.append(run)
            if agent == "slow":
                people.impatient.add(run)
            ask(here, run, agent)
            crash = {"run": run, "after": after, "number": number}
            child = here.executor("one", crash=crash, batch=1 if after == "append" else 500)
            people.until(lambda run=run, child=child: child.status is not None or run in here.reported(), run)
            if not child.ends_within(1.0):
                break  # the run was over before it came to this point: there are no more
            assert child.status == CRASHED, here.complaints.read_text()
        else:
            pytest.fail("no run came to its end")
        assert len(runs) > {"people": 8, "limited": 3, "slow": 4}[agent]
        check(here, runs, STATUS[agent], people)
        if agent == "slow":
            people.until(lambda: not running(runs), "every tool gone", STOPPED_S)
        print(f"{len(runs) - 1} crashes after each {after}")


def test_two_owners_with_people(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """One is stopped past its session while people and a child are waited for, another takes over, the first wakes."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here, intake(here):
        people = People(here)
        first = here.executor("one")
        first.wait("live")
        runs = [f"run-{number}" for number in range(6)]
        for run in runs:
            ask(here, run, "people")
        people.until(lambda: any(each.type == "ApprovalRequired" for each in here.records), "an approval")
        first.send(signal.SIGSTOP)
        second = here.executor("two")
        second.wait("live")
        people.until(lambda: bool(here.reported()), "one run over")
        first.send(signal.SIGCONT)
        check(here, runs, "completed", people)


def intake(here: Place) -> Stack:
    """A real intake: delegated tasks come back through it."""
    stack = Stack(
        {
            "KAFKA_BOOTSTRAP_SERVERS": here.bootstrap,
            "RUNFOLD_TOPIC_PREFIX": here.names.prefix,
            "RUNFOLD_RUN_PARTITIONS": str(here.partitions),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
    )
    stack.start("intake")
    return stack
