"""Events and bytes over random values; class and schema field by field; schemas that change, by file and by registry."""

import copy
import io
import json
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from random import Random
from types import NoneType
from typing import Any

import fastavro
import pytest

from runfold.events import types
from runfold.events.codec import Codec, Undecodable, fingerprint_of, released_schemas
from runfold.events.encoder import encoder_of
from runfold.events.types import DECISIONS, FACTS, OTHERS, MessageReceived, ToolReported

GOLDEN = Path(__file__).parents[1] / "histories" / "golden"
SCHEMAS = released_schemas()
ALL_TYPES = FACTS + DECISIONS + OTHERS
each_type = pytest.mark.parametrize("cls", ALL_TYPES, ids=lambda cls: cls.__name__)
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
TEXTS = ("", "a", "ü€😀", "\0", "x" * 200, '"{}\\', "\U0010ffff")
NUMBERS = (0, 1, -1, 63, 64, -64, -65, 4095, 4096, LONG_MAX, LONG_MIN)


class Registry:
    """A schema registry in memory."""

    def __init__(self, *schemas: Any) -> None:
        self.schemas = [json.dumps(schema) for schema in schemas]

    def id_of(self, record: str, schema: str) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema) + 1

    def schema_of(self, schema_id: int) -> str:
        if schema_id > len(self.schemas):
            raise LookupError("the registry has no such schema")
        return self.schemas[schema_id - 1]


def hints_of(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, vars(types))


def without_none(hint: Any) -> list[Any]:
    return [argument for argument in typing.get_args(hint) if argument is not NoneType]


def random_value(hint: Any, rng: Random) -> Any:
    origin = typing.get_origin(hint)
    if origin is list:
        return [random_value(without_none(hint)[0], rng) for _ in range(rng.randrange(4))]
    if origin is dict:
        return {rng.choice(TEXTS): random_value(typing.get_args(hint)[1], rng) for _ in range(rng.randrange(4))}
    if origin is not None:
        return None if rng.random() < 0.4 else random_value(without_none(hint)[0], rng)
    if is_dataclass(hint):
        return random_event(typing.cast("type", hint), rng)
    if hint is int:
        return rng.choice((*NUMBERS, rng.randrange(LONG_MIN, LONG_MAX)))
    return {str: rng.choice(TEXTS), bool: rng.random() < 0.5, bytes: rng.randbytes(rng.randrange(300))}[hint]


def random_event(cls: type, rng: Random) -> Any:
    return cls(**{name: random_value(hint, rng) for name, hint in hints_of(cls).items()})


def plain(value: Any) -> Any:
    """A value as fastavro takes it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def by_fastavro(schema: Any, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(schema)), value)
    return out.getvalue()


@each_type
def test_random_values_are_written_as_fastavro_writes_them_and_read_back(cls: type) -> None:
    """The fast path is the specification's encoding, whatever stands in the fields."""
    schema, codec = SCHEMAS[cls.__name__][-1], CODEC
    encode, rng = encoder_of(schema), Random(cls.__name__)
    for _ in range(30):
        value = random_event(cls, rng)
        assert encode(value) == by_fastavro(schema, plain(value)), value
        assert codec.decode(codec.encode(value)) == value


CODEC = Codec()


@pytest.mark.parametrize("number", [LONG_MAX + 1, LONG_MIN - 1])
def test_a_number_that_avro_cannot_hold_is_refused(number: int) -> None:
    """Never wrapped round in silence."""
    with pytest.raises(OverflowError):
        CODEC.encode(types.TurnAdvanced(model_call="m", turn=number, calls=[]))


def test_half_a_surrogate_pair_is_refused() -> None:
    """Text is sanitised at the ingress; what gets past it is found before it is appended."""
    with pytest.raises(UnicodeEncodeError):
        CODEC.encode(MessageReceived(command_id="c", text="\ud800"))


# ---- class and schema


def avro_of(hint: Any) -> Any:
    """What a type hint is in Avro, named records by their name."""
    origin = typing.get_origin(hint)
    if origin is list:
        return {"array": avro_of(typing.get_args(hint)[0])}
    if origin is dict:
        return {"map": avro_of(typing.get_args(hint)[1])}
    if origin is not None:
        return ["null", avro_of(without_none(hint)[0])]
    return hint.__name__ if is_dataclass(hint) else {str: "string", int: "long", bool: "boolean", bytes: "bytes"}[hint]


def shape_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return [shape_of(branch) for branch in schema]
    if isinstance(schema, str):
        return schema.removeprefix("runfold.")
    inner = {"array": "items", "map": "values"}.get(schema["type"])
    return {schema["type"]: shape_of(schema[inner])} if inner else schema.get("name", schema["type"])


def records_in(schema: Any) -> list[Any]:
    """This record and those inside it."""
    if isinstance(schema, list):
        return [record for branch in schema for record in records_in(branch)]
    if not isinstance(schema, dict):
        return []
    found = [schema] if schema["type"] == "record" else []
    parts = [field["type"] for field in schema.get("fields", [])] + [schema.get("items"), schema.get("values")]
    return found + [record for part in parts for record in records_in(part)]


def default_of(field: "Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return plain(field.default_factory())
    return field.default


@each_type
def test_class_and_schema_agree_on_names_order_types_and_defaults(cls: type) -> None:
    """One contract, said twice, must not differ; values inside events included."""
    for record in records_in(SCHEMAS[cls.__name__][-1]):
        inner = getattr(types, record["name"])
        said = [(field["name"], shape_of(field["type"]), field.get("default", MISSING)) for field in record["fields"]]
        hints = hints_of(inner)
        assert said == [(field.name, avro_of(hints[field.name]), default_of(field)) for field in fields(inner)]


# ---- schemas that change


def later(plus: tuple[Any, ...] = (), without: str = "", **types_of: str) -> Any:
    """ToolReported as another version might have it."""
    schema = copy.deepcopy(SCHEMAS["ToolReported"][-1])
    schema["fields"] = [field for field in schema["fields"] if field["name"] != without] + list(plus)
    for field in schema["fields"]:
        field["type"] = types_of.get(field["name"], field["type"])
    return schema


REPORT = random_event(ToolReported, Random(7))
HOST = {"name": "host", "type": "string", "default": ""}
OLD = SCHEMAS["ToolReported"][-1]


def both(current: Any, other: Any) -> Codec:
    """A package that carries two versions; the last is the current one."""
    return Codec(schemas={"ToolReported": [other, current]})


def test_an_added_field_is_left_out_by_those_who_do_not_know_it() -> None:
    """A writer of the next release, a reader of this one."""
    newer = later(plus=(HOST,))
    body = by_fastavro(newer, {**plain(REPORT), "host": "n1"})
    assert both(OLD, newer).decode(b"\xc3\x01" + fingerprint_of(newer) + body) == REPORT


def test_a_field_that_an_older_writer_did_not_have_takes_its_default() -> None:
    """A writer of the last release, a reader of this one."""
    older = later(without="exit_code")
    body = by_fastavro(older, {name: value for name, value in plain(REPORT).items() if name != "exit_code"})
    read: Any = both(OLD, older).decode(b"\xc3\x01" + fingerprint_of(older) + body)
    assert read.exit_code is None
    assert (read.output, read.duration_ms) == (REPORT.output, REPORT.duration_ms)


def test_an_incompatible_version_is_undecodable_not_guessed() -> None:
    """A long that was a string, a field without a default that was not written."""
    for older in (later(position="string"), later(without="outcome")):
        written = {**plain(REPORT), "position": "1"} if older["fields"][1]["type"] == "string" else plain(REPORT)
        body = by_fastavro(older, {field["name"]: written[field["name"]] for field in older["fields"]})
        with pytest.raises(Undecodable, match="ToolReported"):
            both(OLD, older).decode(b"\xc3\x01" + fingerprint_of(older) + body)


def test_a_schema_from_the_registry_is_resolved_to_ours() -> None:
    """A version that this package never carried, by its id."""
    newer = later(plus=(HOST,))
    codec = Codec(Registry(newer), {"ToolReported": [OLD]})
    value = b"\x00\x00\x00\x00\x01" + by_fastavro(newer, {**plain(REPORT), "host": "n1"})
    assert codec.decode(value) == REPORT


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Registry(), "no such schema"),
        (Registry({"type": "record", "name": "Foreign", "fields": []}), "not one of Runfold's"),
        (Registry("string"), "not one of Runfold's"),
        (Registry({"type": "nonsense"}), "schema id 1"),
    ],
)
def test_a_schema_id_that_is_not_ours_is_undecodable(given: Registry, said: str) -> None:
    """Whatever else lives in the registry, and whatever broke there."""
    codec = Codec(given, {"Nothing": [OLD]})  # a package without a type of ours registers nothing
    with pytest.raises(Undecodable, match=said):
        codec.decode(b"\x00\x00\x00\x00\x01abc")


@each_type
def test_golden_bodies_in_confluent_framing_are_the_same_event(cls: type) -> None:
    """The framing is not the content: one recorded body, read and written both ways."""
    golden = bytes.fromhex((GOLDEN / f"{cls.__name__}.v1.hex").read_text(encoding="ascii"))
    framed = b"\x00\x00\x00\x00\x01" + golden[10:]
    assert framed[5:] == golden[10:]
    codec = CONFLUENT[cls.__name__]
    value = codec.decode(framed)
    assert value == CODEC.decode(golden)
    if len(SCHEMAS[cls.__name__]) == 1:
        assert codec.encode(value) == framed


CONFLUENT = {name: Codec(Registry(versions[0]), {name: versions}) for name, versions in SCHEMAS.items()}


@pytest.mark.parametrize("cls", [ToolReported, types.ModelReplied, types.RunRequested])
def test_a_damaged_body_never_escapes_as_another_error(cls: type) -> None:
    """Any byte changed, any tail cut off: an event, or Undecodable; nothing else reaches the loop."""
    rng = Random(3)
    for _ in range(150):
        value = bytearray(CODEC.encode(random_event(cls, rng)))
        if rng.random() < 0.5:
            value = value[: rng.randrange(len(value))]
        else:
            value[rng.randrange(10, len(value))] = rng.randrange(256)
        try:
            CODEC.decode(bytes(value))
        except Undecodable:
            continue
