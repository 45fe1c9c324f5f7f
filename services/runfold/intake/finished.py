"""The ids of tasks that have ended, from the compacted completions topic; and of those that began lately.

Digests stand for ids and requests, so that an entry has the same small size whatever the id is. Two ids with the same
16 bytes do not happen by chance.
"""

import hashlib
from dataclasses import dataclass, field

RECENT_MAX = 20_000  # ids of a partition that run now; the executor ignores repeats of the older ones


def _short(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _body(request_digest: str) -> bytes:
    """Empty for a request that nobody knows any more: it is not another body than any."""
    return _short(request_digest) if request_digest else b""


@dataclass(slots=True)
class FinishedIds:
    """One partition's memory: id to the request it had."""

    _ended: dict[bytes, bytes] = field(default_factory=dict)
    _recent: dict[bytes, bytes] = field(default_factory=dict)  # oldest first

    def __len__(self) -> int:
        return len(self._ended)

    def ended(self, task_id: str, request_digest: str) -> None:
        key = _short(task_id)
        self._recent.pop(key, None)
        self._ended[key] = _body(request_digest)

    def deleted(self, task_id: str) -> None:
        """Its completion was deleted from the topic: with it goes the promise."""
        self._ended.pop(_short(task_id), None)

    def began(self, task_id: str, request_digest: str) -> None:
        self._recent[_short(task_id)] = _body(request_digest)
        if len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]

    def did_not_begin(self, task_id: str) -> None:
        """Nobody knows whether its first record reached the log: it is asked for again."""
        self._recent.pop(_short(task_id), None)

    def is_ended(self, task_id: str) -> bool:
        return _short(task_id) in self._ended

    def is_known(self, task_id: str) -> bool:
        key = _short(task_id)
        return key in self._ended or key in self._recent

    def has_other_body(self, task_id: str, request_digest: str) -> bool:
        """Is this id known with another request than this one?"""
        key = _short(task_id)
        known = self._ended.get(key) or self._recent.get(key)
        return bool(known) and known != _body(request_digest)
