"""A process may end after any record it writes, or at any other moment: the run goes on elsewhere, nothing twice."""

import signal
from pathlib import Path
from random import Random

import pytest

from tests.integration.harness import Place, place
from tests.integration.oracle import problems

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.requirement("R2"),
    pytest.mark.requirement("R3"),
    pytest.mark.requirement("R5"),
    pytest.mark.requirement("R6"),
    pytest.mark.requirement("R11"),
    pytest.mark.requirement("R12"),
    pytest.mark.requirement("R36"),
]
POINTS_MAX = 80
KILLS = 50
KILL_WITHIN_S = 0.6
CRASHED = 137


def check(here: Place, runs: list[str]) -> None:
    here.until(lambda: here.reported() >= set(runs), "every run over")
    here.until(lambda: _drained(here), "the log read")
    effects = here.effects()
    found = {run: wrong for run in runs if (wrong := problems(here.records, run, effects))}
    assert not found, found


def _drained(here: Place) -> bool:
    before = len(here.records)
    here.read(0.5)
    return len(here.records) == before


@pytest.mark.parametrize("after", ["batch", "append"])
def test_a_crash_at_every_log_end(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path, after: str) -> None:
    """The k-th process ends at the k-th log end of run k; the next one carries that run on, and is the next to end."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        runs: list[str] = []
        for number in range(1, POINTS_MAX):
            run = f"run-{number}"
            runs.append(run)
            here.request(run)
            crash = {"run": run, "after": after, "number": number}
            child = here.executor("one", crash=crash, batch=1 if after == "append" else 500)
            here.until(lambda run=run, child=child: child.status is not None or run in here.reported(), run)
            if not child.ends_within(1.0):
                break  # the run was over before it came to this point: there are no more
            assert child.status == CRASHED, here.complaints.read_text()
        else:
            pytest.fail("no run came to its end")
        assert len(runs) > (5 if after == "batch" else 20)
        check(here, runs)
        print(f"{len(runs) - 1} crashes after each {after}")


def test_kills_at_random_moments(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """SIGKILL from outside, fifty times, while runs are on their way."""
    random = Random(7)  # the moments; what they hit differs from time to time
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        runs: list[str] = []
        for _ in range(KILLS):
            child = here.executor("one")
            child.wait("assigned")
            for _ in range(2):
                runs.append(f"run-{len(runs)}")
                here.request(runs[-1])
            child.ends_within(random.uniform(0, KILL_WITHIN_S))
            child.send(signal.SIGKILL)
            assert child.ends_within(30)
            assert child.status == -signal.SIGKILL, here.complaints.read_text()
        here.executor("one")
        check(here, runs)
