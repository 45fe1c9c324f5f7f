"""A run's workspace is lost with its machine, again and again: what changed it is repeated, and nothing else is."""

import signal
from pathlib import Path

import pytest

from tests.integration.harness import Place, place
from tests.integration.oracle import Seen, accepted

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.requirement("R22"), pytest.mark.requirement("R23")]
POINTS_MAX = 120
CRASHED = 137


@pytest.mark.parametrize("after", ["batch", "append"])
def test_a_crash_at_every_log_end_and_the_next_owner_is_elsewhere(
    kafka_bootstrap: str, topic_prefix: str, tmp_path: Path, after: str
) -> None:
    """The k-th process ends at the k-th log end of run k; the next one has another spool: nothing of the first is there."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        runs: list[str] = []
        for number in range(1, POINTS_MAX):
            run = f"run-{number}"
            runs.append(run)
            here.request(run, "builder")
            crash = {"run": run, "after": after, "number": number}
            batch = 1 if after == "append" else 500
            child = here.executor("one", crash=crash, batch=batch, host=str(number % 2))
            here.until(lambda run=run, child=child: child.status is not None or run in here.reported(), run)
            if not child.ends_within(1.0):
                break  # the run was over before it came to this point: there are no more
            assert child.status == CRASHED, here.complaints.read_text()
        else:
            pytest.fail("no run came to its end")
        here.until(lambda: here.reported() >= set(runs), "every run over")
        found = {run: wrong for run in runs if (wrong := workspace_problems(here.run(run)))}
        assert not found, found
        kinds = [each.type for each in here.records]
        assert kinds.count("SandboxReplaced") > 3
        assert kinds.count("ReplayStarted") > 3
        print(f"{len(runs) - 1} crashes, {kinds.count('ReplayStarted')} repetitions")


def workspace_problems(run: list[Seen]) -> list[str]:
    """Every call that succeeded saw exactly what the successful ones before it had done."""
    chain = accepted(run)
    found = []
    ends = [each.body.status for each in chain if each.type == "RunFinished"]
    if ends != ["completed"]:
        found.append(f"ends: {ends}")
    ready = [each.body for each in chain if each.type == "SandboxReady"]
    found += [f"partly restored: {body.message}" for body in ready if "then it stopped" in body.message]
    lines = 0
    for each in closings(run, chain):
        if each.type == "ToolReported" and each.body.outcome == "succeeded":
            lines += 1
            if each.body.output.strip() != str(lines):
                found.append(f"{each.offset}: says {each.body.output!r}, after {lines - 1} that succeeded")
        elif each.type == "ToolReported":
            found.append(f"{each.offset}: {each.body.output}")
    return found


def closings(run: list[Seen], chain: list[Seen]) -> list[Seen]:
    """What closed each call of the reply that counted, in log order; reports of repetitions close nothing."""
    dispatches = {each.id for each in chain if each.type == "ToolDispatchStarted"}
    closed: dict[tuple[str, int], Seen] = {}
    for each in run:
        is_report = each.type == "ToolReported" and each.body.dispatch in dispatches
        if is_report or (each.type == "ToolSettled" and each in chain):
            closed.setdefault((each.body.model_call, each.body.position), each)
    return sorted(closed.values(), key=lambda each: each.offset)


def test_two_owners_with_a_workspace_each(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """One is stopped past its session, another takes over with an empty workspace, the first wakes: no call is doubled."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        first = here.executor("one", host="a")
        first.wait("live")
        runs = [f"run-{number}" for number in range(4)]
        for run in runs:
            here.request(run, "builder")
        here.until(lambda: _reports(here) > 2, "some work done")
        first.send(signal.SIGSTOP)
        second = here.executor("two", host="b")
        second.wait("live")
        here.until(lambda: bool(here.reported()), "one run over")
        first.send(signal.SIGCONT)
        here.until(lambda: here.reported() >= set(runs), "every run over")
        found = {run: wrong for run in runs if (wrong := workspace_problems(here.run(run)))}
        assert not found, found


def _reports(here: Place) -> int:
    return sum(each.type == "ToolReported" for each in here.records)
