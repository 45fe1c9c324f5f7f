"""The ids of tasks that have ended, from the compacted completions topic; and of those that began lately.

Sixteen bytes of a digest stand for an id: a million finished tasks cost about a hundred megabytes.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

RECENT_MAX = 100_000  # ids of a partition that began lately; the executor ignores repeats of older ones that still run


def _short(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(slots=True)
class FinishedIds:
    """One partition's memory."""

    _ended: dict[bytes, bytes] = field(default_factory=dict)
    _recent: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)

    def ended(self, task_id: str, request_digest: str) -> None:
        self._ended[_short(task_id)] = _short(request_digest)

    def began(self, task_id: str, request_digest: str) -> None:
        self._recent[_short(task_id)] = _short(request_digest)
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def is_ended(self, task_id: str) -> bool:
        return _short(task_id) in self._ended

    def is_known(self, task_id: str) -> bool:
        return self.is_ended(task_id) or _short(task_id) in self._recent

    def has_other_body(self, task_id: str, request_digest: str) -> bool:
        """Is this id known with another request than this one?"""
        key = _short(task_id)
        known = self._ended.get(key) or self._recent.get(key)
        return known is not None and known != _short(request_digest)
