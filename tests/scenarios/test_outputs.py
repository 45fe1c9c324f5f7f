"""What tools print: bytes that are no text, far too much, nothing."""

from pathlib import Path

import pytest

from runfold.adapters.blobs import DirectoryBlobs
from runfold.core.limits import RECORD_BYTES_MAX
from tests.scenarios.executor_process import LINE
from tests.scenarios.replies import DONE, call, calls
from tests.scenarios.world import World

pytestmark = pytest.mark.kafka

MEGABYTES = 10
GROWTH_KB_MAX = 128 * 1024


@pytest.mark.scenario("S13")
def test_bytes_that_are_no_text(here: World) -> None:
    """Readable in the log and for the model: NUL and what is no UTF-8 are replaced, the rest stands; the run goes on."""
    run = here.run([calls(call("hostile"), call("note", text="b")), DONE])
    assert run.over().status == "completed"
    output = run.results(1)[0]
    assert "\0" not in output
    assert output.encode().decode() == output
    assert output.startswith("\N{REPLACEMENT CHARACTER}one\N{REPLACEMENT CHARACTER}")
    assert "red" in output
    assert output.endswith("\r\n")
    assert "two" in output
    assert next(each.output for each in run.events("ToolReported") if each.position == 0) == output


@pytest.mark.scenario("S15")
@pytest.mark.requirement("R20")
def test_ten_megabytes_in_one_line(here: World) -> None:
    """Head and tail for the model, with the size said, cut between characters; the whole elsewhere; memory is bounded."""
    pid = here.executors["one"].pid
    before_kb = _memory_kb(pid)
    run = here.run([calls(call("flood", megabytes=MEGABYTES))] * 4 + [DONE])
    assert run.over().status == "completed"
    whole = LINE * (MEGABYTES * 1_000_000 // len(LINE.encode()))
    size = len(whole.encode())
    assert size > 0.99 * MEGABYTES * 1_000_000
    for number, seen in enumerate(run.seen("ToolReported"), 1):
        assert seen.size < RECORD_BYTES_MAX
        assert seen.body.output_bytes == size
        assert DirectoryBlobs(here.folder / "blobs").get(seen.body.output_ref) == whole.encode()
        head, tail = run.results(number)[0].split(f"\n… [{size:,} bytes in all; the middle is left out] …\n")
        assert whole.startswith(head)
        assert whole.endswith(tail)
        assert len(head) + len(tail) > 10_000
    assert max(seen.size for seen in run.records) < RECORD_BYTES_MAX
    assert _memory_kb(pid) - before_kb < GROWTH_KB_MAX


def _memory_kb(pid: int) -> int:
    """The most that this process ever held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@pytest.mark.scenario("S32")
def test_a_tool_that_returns_nothing(here: World) -> None:
    """The model sees a placeholder: an empty result is refused by some servers."""
    run = here.run([calls(call("idle"), call("note", text="b")), DONE])
    assert run.over().status == "completed"
    assert run.results(1) == ["(no output)", "noted b"]
    assert run.outcomes() == ["succeeded"] * 2
