"""One value of every event type, all fields set: for round trips and golden bytes. Never change one: add new ones."""

import typing
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any

from runfold.events import types
from runfold.events.types import DECISIONS, FACTS, OTHERS

ALL_TYPES = FACTS + DECISIONS + OTHERS


def sample(cls: type) -> Any:
    """A value whose fields say their own names, so that two swapped fields show."""
    hints = typing.get_type_hints(cls, vars(types))
    return cls(
        **{field.name: _value(hints[field.name], field.name, place) for place, field in enumerate(fields(cls), 1)}
    )


def _value(hint: Any, name: str, place: int) -> Any:
    arguments = [argument for argument in typing.get_args(hint) if argument is not NoneType]
    match typing.get_origin(hint):
        case None:
            pass
        case origin if origin is list:
            return [_value(arguments[0], name, place), _value(arguments[0], name, place + 100)]
        case origin if origin is dict:
            return {f"{name}-é": _value(arguments[1], name, place)}
        case _:
            return _value(arguments[0], name, place)
    if is_dataclass(hint):
        return sample(typing.cast("type", hint))
    return {str: f"{name} {place} ü€😀", int: place * 1_000_003, bool: place % 2 == 0, bytes: bytes([place, 0, 255])}[
        hint
    ]
