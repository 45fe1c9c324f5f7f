"""Schemas that change: what a reader of one version makes of a record of another, in every way that Avro allows.

Golden bytes and the agreement of class and schema are in `test_codec.py` and `test_codec_values.py`.
"""

import copy
import io
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from runfold.events.codec import Codec, Undecodable, fingerprint_of, released_schemas
from runfold.events.types import PhaseEntered

NOW = released_schemas()["PhaseEntered"][-1]
ENTERED = PhaseEntered(phase="reporting", turn=300)
PLAIN = {"phase": "reporting", "turn": 300}


def another(change: Callable[[list[dict[str, Any]]], None]) -> Any:
    """PhaseEntered as another release might have it."""
    schema = copy.deepcopy(NOW)
    change(schema["fields"])
    return schema


def written(schema: Any, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(schema)), record)
    return b"\xc3\x01" + fingerprint_of(schema) + out.getvalue()


def reader(other: Any) -> Codec:
    """A package that carries the other version too, and writes the current one."""
    return Codec(schemas={"PhaseEntered": [other, NOW]})


def retyped(name: str, kind: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(fields: list[dict[str, Any]]) -> None:
        next(field for field in fields if field["name"] == name)["type"] = kind

    return change


READABLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "a field was added": (lambda fields: fields.append({"name": "why", "type": "string"}), {"why": "because"}),
    "a record was added": (
        lambda fields: fields.insert(
            0, {"name": "who", "type": {"type": "record", "name": "Who", "fields": [{"name": "n", "type": "long"}]}}
        ),
        {"who": {"n": 1}},
    ),
    "the order is another": (lambda fields: fields.reverse(), {}),
    "an int was promoted to long": (retyped("turn", "int"), {}),
    "bytes were promoted to string": (retyped("phase", "bytes"), {"phase": b"reporting"}),
    "a union was narrowed": (retyped("turn", ["null", "long"]), {}),
}
UNREADABLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "a field without a default was not written yet": (lambda fields: fields.pop(), {}),
    "a string became a long": (retyped("turn", "string"), {"turn": "300"}),
    "a long was a double": (retyped("turn", "double"), {"turn": 300.0}),
    "a union held what no longer is allowed": (retyped("turn", ["null", "long"]), {"turn": None}),
    "a list became a value": (retyped("turn", {"type": "array", "items": "long"}), {"turn": [300]}),
}


@pytest.mark.parametrize("case", READABLE)
def test_a_compatible_version_reads_as_the_current_one(case: str) -> None:
    """Whatever the other release wrote beside, in which order, in which smaller type."""
    change, values = READABLE[case]
    other = another(change)
    assert reader(other).decode(written(other, {**PLAIN, **values})) == ENTERED


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_incompatible_version_fails_loudly(case: str) -> None:
    """With the name of the record; nothing is guessed."""
    change, values = UNREADABLE[case]
    other = another(change)
    with pytest.raises(Undecodable, match="PhaseEntered: the body does not fit its schema"):
        reader(other).decode(written(other, {**PLAIN, **values}))


def test_a_removed_field_is_skipped_when_an_older_record_has_it() -> None:
    """The older release's records stay in the log for as long as their runs are read."""
    older = another(lambda fields: fields.append({"name": "gone", "type": ["null", "string"], "default": None}))
    assert reader(older).decode(written(older, {**PLAIN, "gone": "x" * 1_000})) == ENTERED


def test_a_version_that_the_package_does_not_carry_is_unknown() -> None:
    """Readers learn a version one release before anybody writes it."""
    newer = another(lambda fields: fields.append({"name": "why", "type": "string"}))
    with pytest.raises(Undecodable, match=f"unknown schema fingerprint {fingerprint_of(newer).hex()}"):
        Codec(schemas={"PhaseEntered": [NOW]}).decode(written(newer, {**PLAIN, "why": ""}))


@pytest.mark.parametrize(
    "change", [lambda s: s.update(doc="other words"), lambda s: s["fields"][0].update(doc="other")]
)
def test_words_are_not_part_of_a_version(change: Callable[[Any], None]) -> None:
    """Documentation may be mended without a new schema: the fingerprint is of what is on the wire."""
    mended = copy.deepcopy(NOW)
    change(mended)
    assert fingerprint_of(mended) == fingerprint_of(NOW)
