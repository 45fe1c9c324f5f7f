"""Cutting a long output for the model: head and tail stay, a line between them says what is missing."""


def head_and_tail(text: str, bytes_max: int) -> str:
    """The text if it fits (in UTF-8), else its two ends with a note between; cut between characters, never inside."""
    whole = text.encode()
    if len(whole) <= bytes_max:
        return text
    note = f"\n… [{len(whole):,} bytes in all; the middle is left out] …\n"
    room = max(0, bytes_max - len(note.encode()))
    head = whole[: room - room // 2].decode("utf-8", "ignore")
    tail = whole[len(whole) - room // 2 :].decode("utf-8", "ignore") if room // 2 else ""
    return head + note + tail
