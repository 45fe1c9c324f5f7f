"""Checkpoints: a state as bytes and back, whatever the run has been through."""

import json
import zlib
from random import Random

import pytest

from runfold.core.checkpoint import PART_BYTES, packed, parts, unpacked
from runfold.core.state import RunState
from tests.builders import call, dispatched, finished, reported, waiting
from tests.laws.histories import random_story


@pytest.mark.parametrize("seed", range(8))
def test_a_state_comes_back_as_it_was(seed: int) -> None:
    """At every step of a random history."""
    for state in random_story(seed).states():
        assert unpacked(packed(state)) == state


def test_special_states_come_back() -> None:
    """Empty, waiting, ended, over; with late reports and settled calls."""
    late = dispatched(call("read"), call("read"))
    late.add(late.report(0, nonce="a"))
    late.add(late.report(0, nonce="b"))
    for story in (late, waiting(), finished(), reported()):
        assert unpacked(packed(story.state)) == story.state
    assert unpacked(packed(RunState(run_id="r"))) == RunState(run_id="r")


def test_equal_states_have_equal_bytes() -> None:
    """Sets have no order; bytes must not depend on it."""
    one, two = RunState(run_id="r"), RunState(run_id="r")
    commands = [f"c{number}" for number in range(100)]
    one.commands.update(commands)
    two.commands.update(reversed(commands))
    assert packed(one) == packed(two)


def test_fields_of_another_version_do_no_harm() -> None:
    """What a newer version added is left out here; what it dropped takes its default."""
    plain = json.loads(zlib.decompress(packed(waiting().state)))
    plain["invented"] = {"a": 1}
    plain["counters"]["invented"] = 2
    del plain["closed"]
    assert unpacked(zlib.compress(json.dumps(plain).encode())) == waiting().state


@pytest.mark.parametrize("payload", [b"", b"junk", zlib.compress(b"{")])
def test_what_is_no_checkpoint_is_refused(payload: bytes) -> None:
    """By an error that the reader expects."""
    with pytest.raises((ValueError, zlib.error)):
        unpacked(payload)


def test_parts_fit_a_record_and_join_to_the_whole() -> None:
    """A large state goes in several records, each below the limit."""
    payload = Random(1).randbytes(2 * PART_BYTES + 17)
    pieces = list(parts(payload))
    assert [len(piece) for piece in pieces] == [PART_BYTES, PART_BYTES, 17]
    assert b"".join(pieces) == payload
