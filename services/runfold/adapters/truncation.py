"""Cutting a long output for the model: head and tail stay, a line between them says what is missing."""


def head_and_tail(text: str, bytes_max: int, size_bytes: int | None = None) -> str:
    """The text if it fits (in UTF-8), else its two ends with a note between; cut between characters, never inside.

    The answer never has more than `bytes_max` bytes: where they hardly hold the note, the note itself is cut. The text
    must be sanitised: a lone surrogate has no bytes. `size_bytes` is what the note says, when the text is not the whole.
    """
    whole = text.encode()
    if len(whole) <= bytes_max:
        return text
    note = f"\n… [{size_bytes or len(whole):,} bytes in all; the middle is left out] …\n"
    room = bytes_max - len(note.encode())
    if room <= 0:
        return note.encode()[: max(0, bytes_max)].decode("utf-8", "ignore")
    head = whole[: room - room // 2].decode("utf-8", "ignore")
    tail = whole[len(whole) - room // 2 :].decode("utf-8", "ignore")
    return head + note + tail
