"""An executor stopped past its session wakes up beside its successor, and believes that it still owns the runs."""

import signal
from pathlib import Path

import pytest

from tests.integration.harness import Child, Place, place
from tests.integration.oracle import accepted, problems

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
RUNS = 30


def _decisions(here: Place, child: Child) -> int:
    source = f"/runfold/executor/{child.options['name']}".encode()
    return sum(
        "follows" in each.headers and each.headers.get("ce_source") == source
        for each in here.records
        if each.topic == "run-events"
    )


@pytest.mark.requirement("R11")
@pytest.mark.requirement("R12")
@pytest.mark.requirement("R36")
def test_a_stopped_owner_wakes_up_beside_its_successor(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """The successor carries the runs; what the woken one writes is void for every reader, and it goes on or ends."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        first = here.executor("first")
        first.wait("live")
        for number in range(3):
            here.request(f"long-{number}", "long")
        runs = [f"long-{number}" for number in range(3)]
        here.until(lambda: _decisions(here, first) > 100, "the first at work")
        first.send(signal.SIGSTOP)
        second = here.executor("second")
        second.wait("live")
        assert not here.reported() >= set(runs)
        for number in range(RUNS):  # the woken one finds records of runs that it never saw begin
            runs.append(f"short-{number}")
            here.request(runs[-1])
        here.until(lambda: _decisions(here, second) > 50, "the successor at work")
        first.send(signal.SIGCONT)
        here.until(lambda: here.reported() >= set(runs), "every run over")
        here.request("last")
        runs.append("last")
        here.until(lambda: here.reported() >= set(runs), "the last run over")
        assert first.status in (None, 0, 3), here.complaints.read_text()
        first.send(signal.SIGTERM)
        second.send(signal.SIGTERM)
        assert first.ends_within(60), "the woken one does not end"
        assert second.ends_within(60)
        assert (first.status, second.status) in ((0, 0), (3, 0)), here.complaints.read_text()
        here.read(1.0)
        effects = here.effects()
        found = {run: wrong for run in runs if (wrong := problems(here.records, run, effects))}
        assert not found, found
        void = 0
        for run in runs:
            records = here.run(run)
            void += sum("follows" in each.headers for each in records) - len(accepted(records))
        print(f"{void} void decisions, {len(effects)} effects")
