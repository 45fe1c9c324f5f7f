"""A person watches a run: model text on run-stream, shown by the reader's rule beside run-events."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runfold.core.fold import EFFECTIVE, FACT, take
from runfold.core.live_text import LiveText
from runfold.core.state import RunState
from runfold.core.transcript import text_of
from runfold.events.envelope import read_envelope
from runfold.events.types import ModelTextDelta, RunRequested
from tests.integration.oracle import Seen
from tests.integration.services import Installation, installation

pytestmark = pytest.mark.kafka
STORY = "".join(f"{number} sheep jumped over the fence, and one looked back. " for number in range(1, 25))
PACE_MS = 40
SCRIPT = {
    "slow": [{"text": STORY, "fault": {"trickle_ms": PACE_MS}}],
    "cut": [{"text": STORY, "fault": {"trickle_ms": PACE_MS, "cut_after_chunks": 20, "times": 1}}],
}


@dataclass
class Watcher:
    """What stands on the screen, after every record that came."""

    run_id: str
    state: RunState = field(init=False)
    live: LiveText = field(default_factory=LiveText)
    screens: list[str] = field(default_factory=list)
    seen: int = 0

    def __post_init__(self) -> None:
        self.state = RunState(run_id=self.run_id)

    def see(self, seen: Seen) -> None:
        if seen.key == self.run_id and seen.topic == "run-stream":
            assert isinstance(seen.body, ModelTextDelta)
            self.live.take_delta(seen.body)
        elif seen.key == self.run_id and seen.topic == "run-events":
            record = read_envelope(
                seen.partition, seen.offset, 0, seen.key.encode(), seen.value, list(seen.headers.items())
            )
            record.body = seen.body
            if take(self.state, record) in (EFFECTIVE, FACT):
                self.live.take_event(record.event_id, record.body)
        if not self.screens or self.screens[-1] != self.live.text:
            self.screens.append(self.live.text)


@pytest.fixture
def here(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> Iterator[Installation]:
    with installation(kafka_bootstrap, topic_prefix, tmp_path, SCRIPT) as made:
        yield made


def watched(here: Installation, agent: str) -> Watcher:
    """The whole of a run of this agent, seen by somebody who reads both topics as they come."""
    here.executor()
    watcher = Watcher("run")
    here.put(here.names.events, "run", RunRequested(task_id="run", agent=agent, input="tell"), "asked")

    def is_over() -> bool:
        while watcher.seen < len(here.records):
            watcher.see(here.records[watcher.seen])
            watcher.seen += 1
        return watcher.state.reported

    here.until(is_over, "the run's end")
    return watcher


@pytest.mark.requirement("R29")
def test_text_is_shown_while_it_is_written(here: Installation) -> None:
    """It grows before the eyes, long before the reply is in the log; the last of it is the reply."""
    watcher = watched(here, "slow")
    (reply,) = here.of("run-events", "ModelReplied")
    deltas = here.of("run-stream")
    assert watcher.screens[-1] == text_of(reply.body.items) == STORY
    assert watcher.live.is_reply
    assert all(STORY.startswith(screen) for screen in watcher.screens)
    assert all(len(a) < len(b) for a, b in itertools.pairwise(watcher.screens))
    replied_ms = here.stamps["run-events", reply.partition, reply.offset]
    stamps_ms = [here.stamps["run-stream", each.partition, each.offset] for each in deltas]
    assert max(stamps_ms) <= replied_ms
    assert replied_ms - min(stamps_ms) > PACE_MS * len(deltas) / 2
    assert len(deltas) > 5
    assert len(watcher.screens) > 5
    assert sum(len(each.body.text) for each in deltas) == len(STORY)


@pytest.mark.requirement("R29")
@pytest.mark.requirement("R31")
def test_a_repeated_attempt_shows_each_character_once(here: Installation) -> None:
    """The stream is cut in the middle; the retry begins anew, and no screen ever holds a word twice."""
    watcher = watched(here, "cut")
    (failed,) = here.of("run-events", "ModelFailed")
    (reply,) = here.of("run-events", "ModelReplied")
    assert failed.body.kind == "broken_stream"
    assert watcher.screens[-1] == text_of(reply.body.items) == STORY
    assert all(STORY.startswith(screen) for screen in watcher.screens)
    by_call = dict.fromkeys((failed.body.model_call, reply.body.model_call), "")
    for each in here.of("run-stream"):
        assert each.body.offset == len(by_call[each.body.model_call])
        by_call[each.body.model_call] += each.body.text
    assert STORY.startswith(by_call[failed.body.model_call])
    assert 100 < len(by_call[failed.body.model_call]) < len(STORY)
    assert by_call[reply.body.model_call] == STORY
    assert max(map(len, watcher.screens[: watcher.screens.index("", 1)])) == len(by_call[failed.body.model_call])
