"""Events and bytes: what was written once stays readable, and nothing is guessed."""

import copy
import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import fastavro
import pytest

from runfold.events.codec import TYPES, Codec, Undecodable, fingerprint_of, released_schemas
from runfold.events.encoder import encoder_of
from runfold.events.types import ToolReported
from tests.unit.samples import ALL_TYPES, sample

GOLDEN = Path(__file__).parents[1] / "histories" / "golden"
SCHEMAS = released_schemas()
CODEC = Codec()


class Registry:
    """A schema registry in memory: ids by order of registration."""

    def __init__(self) -> None:
        self.schemas: list[str] = []

    def id_of(self, record: str, schema: str) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema) + 1

    def schema_of(self, schema_id: int) -> str:
        if not 1 <= schema_id <= len(self.schemas):
            raise LookupError("the registry has no such schema")
        return self.schemas[schema_id - 1]


CONFLUENT = Codec(Registry())


def plain(value: Any) -> Any:
    """A value as fastavro takes it."""
    if hasattr(type(value), "__dataclass_fields__"):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("cls", ALL_TYPES, ids=lambda cls: cls.__name__)
def test_what_is_written_reads_back_the_same(cls: type) -> None:
    """In both framings, by a codec that has both."""
    for codec in (CODEC, CONFLUENT):
        assert CONFLUENT.decode(codec.encode(sample(cls))) == sample(cls)


@pytest.mark.parametrize("cls", ALL_TYPES, ids=lambda cls: cls.__name__)
def test_our_encoder_writes_what_fastavro_writes(cls: type) -> None:
    """The fast path is the specification's encoding, byte for byte."""
    schema = SCHEMAS[cls.__name__][-1]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(schema)), plain(sample(cls)))
    assert encoder_of(schema)(sample(cls)) == out.getvalue()


@pytest.mark.parametrize("cls", ALL_TYPES, ids=lambda cls: cls.__name__)
def test_golden_bytes_of_every_type_stay_what_they_are(cls: type) -> None:
    """A log written by a released version is read for ever."""
    golden = bytes.fromhex((GOLDEN / f"{cls.__name__}.v1.hex").read_text().strip())
    assert CODEC.decode(golden) == sample(cls)
    assert golden[:10] == b"\xc3\x01" + fingerprint_of(SCHEMAS[cls.__name__][0])
    if len(SCHEMAS[cls.__name__]) == 1:
        assert CODEC.encode(sample(cls)) == golden


@pytest.mark.parametrize("cls", ALL_TYPES, ids=lambda cls: cls.__name__)
def test_class_and_schema_have_the_same_fields_in_the_same_order(cls: type) -> None:
    """One contract, said twice, must not differ."""
    schema = SCHEMAS[cls.__name__][-1]
    assert [field["name"] for field in schema["fields"]] == [field.name for field in fields(cls)]
    assert set(TYPES) == set(SCHEMAS)


def changed(**edit: Any) -> dict[str, list[Any]]:
    """All schemas, with a second version of ToolReported."""
    newer = copy.deepcopy(SCHEMAS["ToolReported"][-1])
    for name in edit.get("without", ()):
        newer["fields"] = [field for field in newer["fields"] if field["name"] != name]
    newer["fields"] += edit.get("plus", [])
    for field in newer["fields"]:
        field["type"] = edit.get("types", {}).get(field["name"], field["type"])
    return {**SCHEMAS, "ToolReported": [newer]}


def test_a_compatible_change_stays_readable_both_ways() -> None:
    """A reader that has both versions reads what either wrote."""
    added = [{"name": "host", "type": "string", "default": "unknown"}]
    old, new = SCHEMAS["ToolReported"][-1], changed(plus=added)["ToolReported"][0]
    both = Codec(schemas={"ToolReported": [new, old]})
    body = {**plain(sample(ToolReported)), "host": "n1"}
    out = io.BytesIO(b"\xc3\x01" + fingerprint_of(new))
    out.seek(10)
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(new)), body)
    assert both.decode(out.getvalue()) == sample(ToolReported)
    assert both.decode(CODEC.encode(sample(ToolReported))) == sample(ToolReported)


def test_an_incompatible_change_fails_loudly() -> None:
    """A long that became a string cannot be resolved, and is not."""
    newer = changed(types={"position": "string"})["ToolReported"][0]
    both = Codec(schemas={"ToolReported": [SCHEMAS["ToolReported"][-1], newer]})
    with pytest.raises(Undecodable, match="ToolReported"):
        both.decode(CODEC.encode(sample(ToolReported)))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "neither"),
        (b"garbage", "neither"),
        (b"\xc3\x01" + bytes(8), "unknown schema fingerprint"),
        (b"\x00\x00\x00\x00\x07", "SCHEMA_REGISTRY_URL"),
        (CODEC.encode(sample(ToolReported))[:20], "does not fit"),
        (CODEC.encode(sample(ToolReported)) + b"x", "left over"),
    ],
)
def test_bytes_that_are_no_event_are_refused_with_the_reason(value: bytes, said: str) -> None:
    """Nothing is guessed: the record goes to quarantine."""
    with pytest.raises(Undecodable, match=said):
        CODEC.decode(value)


def test_schemas_are_json_with_documentation() -> None:
    """People read them: every record says what it is."""
    for versions in SCHEMAS.values():
        for schema in versions:
            assert schema["doc"] and json.dumps(schema)
