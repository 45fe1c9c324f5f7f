"""A run's state as bytes and back, for RunCheckpointed.

JSON, compressed: every dataclass is an object with the names of its fields, sets are sorted lists. Fields that a newer
version added take their defaults; a checkpoint is carried by the same log as the events, so it must stay readable as
long as they. `unpacked(packed(s)) == s` for every state.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from runfold.core.state import RunState
from runfold.core.transcript import Entry

PART_BYTES = 700 * 1024  # below the record limit, with room for headers
KIND = "$"  # tells the members of a union of records apart


def packed(state: RunState) -> bytes:
    text = json.dumps(_plain(state), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return zlib.compress(text.encode(), 1)


def unpacked(payload: bytes) -> RunState:
    """Raises ValueError (or zlib.error) for bytes that are no checkpoint."""
    state: RunState = _reader(RunState)(json.loads(zlib.decompress(payload)))
    return state


def parts(payload: bytes) -> Iterator[bytes]:
    """The payload in pieces that fit a record."""
    for start in range(0, len(payload), PART_BYTES):
        yield payload[start : start + PART_BYTES]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, Entry):
            found[KIND] = type(value).__name__
        return found
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


ENTRY_TYPES = {cls.__name__: cls for cls in get_args(Entry)}


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """The function that makes a value of this type from JSON."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == Entry:
        return lambda found: _reader(ENTRY_TYPES[found[KIND]])(found)
    if origin in (Union, UnionType):
        inner = _reader(next(argument for argument in arguments if argument is not NoneType))
        return lambda found: None if found is None else inner(found)
    if origin in (list, set, tuple):
        item = _reader(arguments[0])
        return lambda found: origin(item(part) for part in found)
    if origin is dict:
        item = _reader(arguments[1])
        return lambda found: {key: item(part) for key, part in found.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if isinstance(hint, type) and is_dataclass(hint):
        return _record_reader(hint)
    return lambda found: found


def _record_reader(cls: type) -> Callable[[Any], Any]:
    hints = get_type_hints(cls)
    readers = {field.name: _reader(hints[field.name]) for field in fields(cls)}
    return lambda found: cls(**{name: readers[name](part) for name, part in found.items() if name in readers})
