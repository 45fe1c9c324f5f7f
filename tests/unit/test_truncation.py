"""Long outputs for the model: what stays, what is said, and that no character is cut in two."""

import random

import pytest

from runfold.adapters.truncation import head_and_tail

LETTERS = "aä€😀\n"  # one to four bytes


def test_what_fits_is_left_alone() -> None:
    """To the byte, not to the character."""
    assert head_and_tail("ää", 4) == "ää"
    assert head_and_tail("", 0) == ""


@pytest.mark.requirement("R20")
def test_both_ends_stay_and_the_size_is_said() -> None:
    """The end of an output often says what went wrong; the beginning, what it is about."""
    whole = "begin " + "x" * 10_000 + " end"
    cut = head_and_tail(whole, 200)
    assert cut.startswith("begin x")
    assert cut.endswith("x end")
    assert "\n… [10,010 bytes in all; the middle is left out] …\n" in cut


@pytest.mark.requirement("R20")
@pytest.mark.parametrize("seed", range(50))
def test_the_answer_always_fits_and_holds_whole_characters(seed: int) -> None:
    """Whatever the text and wherever the cut falls, even when there is hardly room for the note."""
    rng = random.Random(seed)
    whole = "".join(rng.choices(LETTERS, k=rng.randrange(1, 2_000)))
    for bytes_max in (0, 1, 2, 3, 40, 60, 61, 62, 63, 64, 65, 66, rng.randrange(70, 4_000)):
        cut = head_and_tail(whole, bytes_max)
        assert len(cut.encode()) <= bytes_max
        head, note, rest = cut.partition("\n… [")
        if cut != whole and bytes_max >= 70:
            assert note
            assert whole.startswith(head)
            assert whole.endswith(rest.partition("] …\n")[2])
            assert len(cut.encode()) > bytes_max - 8, "room was given away"
