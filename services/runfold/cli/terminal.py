"""What the commands write: text that cannot move a terminal's cursor, and one JSON object a line for programs."""

import json
import sys
import unicodedata
from typing import Any

from runfold.events.envelope import rfc3339

KEPT = "\n\t"
REPLACED = frozenset({"Cc", "Cf", "Cs", "Co"})  # controls, directions, halves of pairs, private ones
JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"  # of emoji and of some scripts
# By the terminal status of a run.
EXIT_STATUS = {"completed": 0, "failed": 1, "cancelled": 3, "timed_out": 4, "limit_exceeded": 4, "rejected": 5}


def safe(text: str) -> str:
    """The text with what a terminal would obey replaced. Tools and models may print anything."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in KEPT or c in JOINERS or unicodedata.category(c) not in REPLACED else "\N{REPLACEMENT CHARACTER}"
        for c in text
    )


def short(text: str, chars_max: int = 200) -> str:
    """In one line."""
    flat = " ".join(safe(text).split())
    return flat if len(flat) <= chars_max else f"{flat[: chars_max - 1]}…"


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_json(found: dict[str, Any]) -> None:
    say(json.dumps(found, ensure_ascii=True, separators=(",", ":")))


def clock(at_ms: int) -> str:
    return rfc3339(at_ms)[11:23]


def finished(completion: dict[str, Any], *, as_json: bool) -> int:
    """Say how a task ended. Answers the exit status."""
    if as_json:
        say_json(completion)
    elif completion["status"] == "completed":
        say(safe(completion["result"] or ""))
    else:
        reason = completion["reason"] or completion["kind"]
        sys.stderr.write(f"runfold: {completion['status']}: {safe(reason)}\n")
        if completion["result"]:
            say(safe(completion["result"]))
    return EXIT_STATUS.get(completion["status"], 1)
