"""83 recorded runs of four benchmarks, through real Kafka and a real HTTP server, equal to what was recorded."""

import pytest

from tests.cases.recordings import SHARED
from tests.cases.replay import Outcome, replay

if not SHARED.exists():
    pytest.skip(f"NOT RUN: no recorded runs here, {SHARED} does not exist", allow_module_level=True)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def outcome(kafka_bootstrap: str) -> Outcome:
    return replay(kafka_bootstrap)


@pytest.mark.scenario("recorded runs")
def test_every_recorded_run_is_played_to_the_letter(outcome: Outcome) -> None:
    """All 83 are equal in the log and in what the model was sent, and each ended as its recording asks for."""
    assert len(outcome.problems) == 83
    assert not {name: problems for name, problems in outcome.problems.items() if problems}


def test_calls_are_as_many_as_the_recordings_are_said_to_hold(outcome: Outcome) -> None:
    """File by file, the tools that ran are those that cases/README counts."""
    assert outcome.call_problems == []


@pytest.mark.scenario("recorded runs at default limits")
def test_the_longest_run_ends_at_its_token_limit(outcome: Outcome) -> None:
    """With default limits the run of 90 calls ends visibly: which limit, and how far it came."""
    assert outcome.limited is not None
    assert (outcome.limited.status, outcome.limited.kind) == ("limit_exceeded", "token_limit")
    assert "tokens of its limit of 1,000,000" in outcome.limited.reason
