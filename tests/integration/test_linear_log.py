"""The log grows with what happens, not with what has happened before."""

from pathlib import Path

import pytest

from tests.integration.harness import place

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
TURNS, WINDOW = 200, 20


@pytest.mark.requirement("R36")
def test_late_turns_write_as_much_as_early_ones(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """The last twenty of two hundred turns write as many bytes as the first twenty, headers included."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        here.executor("one")
        here.request("long", "long")
        here.until(lambda: "long" in here.reported(), "two hundred turns")
        turns: list[int] = []
        for each in here.run("long"):
            if each.type == "ModelCallStarted":
                turns.append(0)
            if turns:
                turns[-1] += each.size
        assert len(turns) == TURNS
        tools = turns[:-1]  # the last one has no tools: it is the answer
        first, last = sum(tools[:WINDOW]), sum(tools[-WINDOW:])
        print(f"first {WINDOW} turns {first:,} bytes, last {last:,}")
        assert abs(last - first) <= first / 10
