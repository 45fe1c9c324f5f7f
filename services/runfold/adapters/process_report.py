"""From a call's result file to its ToolReported: what the model sees, and the whole in the blob store."""

import base64
import os
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from runfold.adapters.truncation import head_and_tail
from runfold.core.limits import shortened
from runfold.events.text import decoded, sanitised
from runfold.events.types import BlobRef, ToolReported
from runfold.ports import Blobs, Permanent, ToolStart, Transient
from runfold.runner import contract
from runfold.runner.contract import ANSWER, STDERR, STDOUT

ERROR_CHARS_MAX = 300  # of our own words about a blob store's failure
CONTINUATION = bytes(range(0x80, 0xC0))  # bytes that begin no character


class Style(Enum):
    """What of a call's output the model sees."""

    COMMAND = auto()  # standard output; when it failed, all it said
    CODE = auto()  # all it said
    FILE = auto()  # our own words, on standard output


@dataclass(frozen=True, slots=True)
class Reporter:
    """`bytes_max`: what the model sees of an output."""

    blobs: Blobs
    source: str
    bytes_max: int

    def harvested(self, start: ToolStart, folder: Path, style: Style) -> ToolReported:
        """The report of a call whose result file is there."""
        result = contract.read_json(str(folder / contract.RESULT)) or {}
        if (result.get("dispatch"), result.get("nonce")) != (start.dispatch, start.nonce):
            return self.failed(start, "The result file of this call is not of this call.")
        text, missing = _Output(folder, result, style).text()
        ok = result["outcome"] == "succeeded"
        if ok and ANSWER in result["streams"] and not result["streams"][ANSWER]["bytes"]:
            ok, text = False, f"[it ended without a result]\n{text}".rstrip()
        if result["left_running"]:
            text += f"\n[{result['left_running']} of its processes could not be ended]"
        shown, ref, size = self._shown(sanitised(text), missing)
        return ToolReported(
            model_call=start.model_call,
            position=start.position,
            dispatch=start.dispatch,
            source=self.source,
            nonce=start.nonce,
            outcome="succeeded" if ok else "failed",
            output=shown,
            output_ref=ref,
            output_bytes=size,
            exit_code=result["exit_code"],
            duration_ms=result["duration_ms"],
        )

    def failed(self, start: ToolStart, text: str) -> ToolReported:
        """The report of a call that left no result."""
        text = head_and_tail(sanitised(text), self.bytes_max)
        return ToolReported(
            model_call=start.model_call,
            position=start.position,
            dispatch=start.dispatch,
            source=self.source,
            nonce=start.nonce,
            outcome="failed",
            output=text,
            output_bytes=len(text.encode()),
        )

    def _shown(self, text: str, missing: int) -> tuple[str, BlobRef | None, int]:
        whole = text.encode()
        size = len(whole) + missing
        if len(whole) <= self.bytes_max:
            return text, None, size
        try:
            ref = self.blobs.put(whole)
        except (
            OSError,
            Transient,
            Permanent,
        ) as error:  # the tool ran: its outcome is told, whatever became of the rest
            note = sanitised(shortened(f"\n[the whole could not be kept: {error}]", ERROR_CHARS_MAX))
            room = max(0, self.bytes_max - len(note.encode()))
            return head_and_tail(head_and_tail(text, room, size) + note, self.bytes_max), None, size
        return head_and_tail(text, self.bytes_max, size), ref, size


@dataclass(frozen=True, slots=True)
class _Output:
    folder: Path
    result: dict[str, Any]
    style: Style

    def text(self) -> tuple[str, int]:
        """What the tool had to say, and how many bytes the whole would have had beyond that."""
        streams, reason = self.result["streams"], self.result["reason"]
        if ANSWER in streams and streams[ANSWER]["bytes"]:
            answer, missing = self._stream(ANSWER)
            return (f"[{reason}]\n" if reason and answer[0] == "=" else "") + answer[1:], missing
        stdout, missing = self._stream(STDOUT)
        is_well = not reason and ANSWER not in streams
        if (self.style is Style.FILE and stdout) or (self.style is Style.COMMAND and is_well):
            return stdout, missing
        stderr, missing_too = self._stream(STDERR)
        parts = [f"[{reason}]"] if reason else []
        parts += [stdout.removesuffix("\n") if stderr else stdout] if stdout else []
        parts += [f"[stderr]\n{stderr}"] if stderr else []
        return "\n".join(parts), missing + missing_too

    def _stream(self, name: str) -> tuple[str, int]:
        told = self.result["streams"][name]
        kept = self._kept(name, told["kept"])
        head, tail = base64.b64decode(told["head"]), base64.b64decode(told["tail"])
        kept = kept if len(kept) >= len(head) else head
        missing = told["bytes"] - len(kept)
        if missing <= len(tail):
            return decoded(kept + tail[len(tail) - missing :]), 0
        missing -= len(tail)
        note = f"\n… [{missing:,} bytes were not kept] …\n"
        return decoded(kept) + note + decoded(tail.lstrip(CONTINUATION)), missing - len(note.encode())

    def _kept(self, name: str, size: int) -> bytes:
        try:
            with os.fdopen(os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                return file.read(size)
        except OSError:  # both ends are in the result file
            return b""
