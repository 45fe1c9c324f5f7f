"""Events to Avro bytes (`encoder.py`) and back. The only user of fastavro.

Two framings (readers accept both):

- single-object encoding: 0xC3 0x01, the schema's CRC-64-AVRO fingerprint (8 bytes, little endian), body
  (Avro specification 1.12, "Single-object encoding"). The package carries every schema version ever released.
- Confluent: 0x00, the schema's id in a registry (4 bytes, big endian), body. Written when a registry is configured.

A writer's schema that is not the current one is resolved to it as the Avro specification says; one that is not known
at all raises `Undecodable`, and nothing is guessed.
"""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from runfold.events import types
from runfold.events.encoder import Encoder, encoder_of
from runfold.events.types import DECISIONS, FACTS, OTHERS, Event

SINGLE_OBJECT = b"\xc3\x01"
CONFLUENT = b"\x00"
Schema = Any  # JSON, as fastavro takes and gives it
TYPES: dict[str, type] = {cls.__name__: cls for cls in FACTS + DECISIONS + OTHERS}


class Undecodable(Exception):
    """These bytes are not an event that this version knows. The record goes to quarantine; nothing is lost."""


class SchemaIds(Protocol):
    """A schema registry: see `adapters/registry.py`."""

    def id_of(self, record: str, schema: str) -> int:
        """The id of this schema (JSON text) under its subject, registered if need be."""

    def schema_of(self, schema_id: int) -> str:
        """The schema (JSON text) with this id. Raises LookupError when the registry has none of it, and only then."""


class _Form:
    """One event type for reading: its current schema, and the function from fastavro's dict to the value."""

    __slots__ = ("name", "schema", "to_value")

    def __init__(self, cls: type, schema: Schema) -> None:
        self.name = cls.__name__
        self.schema = schema
        self.to_value = _to_value(cls)

    def read_from(self, writer: Schema) -> "_Reading":
        """How to read what this schema wrote; comparing schemas is slow, so it is done once for each."""
        return writer, None if writer == self.schema else self.schema, self


# The writer's schema, the one to resolve it to (None: it is the current one), and the form.
_Reading = tuple[Schema, Schema | None, _Form]


def schema_folder() -> Traversable:
    """Where the .avsc files are: a package of their own in a wheel, the top of the tree in a checkout."""
    try:
        return files("runfold.schemas")
    except ModuleNotFoundError:
        return Path(__file__).parents[3] / "schemas"


def released_schemas() -> dict[str, list[Schema]]:
    """Every schema version in the package, by record name, oldest first."""
    found: dict[str, list[tuple[int, Schema]]] = {}
    for entry in schema_folder().iterdir():
        name, _, rest = entry.name.partition(".v")
        if rest.endswith(".avsc"):
            schema = json.loads(entry.read_text(encoding="utf-8"))
            found.setdefault(name, []).append((int(rest.removesuffix(".avsc")), schema))
    return {name: [schema for _, schema in sorted(versions, key=_version)] for name, versions in found.items()}


def _version(numbered: tuple[int, Schema]) -> int:
    return numbered[0]


def fingerprint_of(schema: Schema) -> bytes:
    """CRC-64-AVRO of the schema's parsing canonical form, as single-object encoding wants it (8 bytes)."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


class Codec:
    """Encodes every event with its current schema; decodes every version this package or the registry knows."""

    def __init__(self, registry: SchemaIds | None = None, schemas: dict[str, list[Schema]] | None = None) -> None:
        self._registry = registry
        self._forms: dict[type, _Form] = {}
        self._encoders: dict[type, Encoder] = {}
        self._readings: dict[bytes, _Reading] = {}
        for name, versions in (schemas or released_schemas()).items():
            cls = TYPES.get(name)
            if cls is None:
                continue
            form = _Form(cls, fastavro.parse_schema(versions[-1]))
            self._encoders[cls] = encoder_of(versions[-1], self._prefix(name, versions[-1]))
            self._forms[cls] = form
            for version in versions:
                self._readings[SINGLE_OBJECT + fingerprint_of(version)] = form.read_from(fastavro.parse_schema(version))

    def _prefix(self, name: str, schema: Schema) -> bytes:
        if self._registry is None:
            return SINGLE_OBJECT + fingerprint_of(schema)
        schema_id = self._registry.id_of(name, json.dumps(schema))
        return CONFLUENT + schema_id.to_bytes(4, "big")

    def encode(self, event: Event) -> bytes:
        """The framed bytes of an event. Raises UnicodeEncodeError for a lone surrogate: sanitise at the ingress."""
        return self._encoders[type(event)](event)

    def decode(self, value: bytes) -> Event:
        """The event in these bytes. Raises Undecodable; and what the registry raises when it does not answer."""
        if value[:2] == SINGLE_OBJECT:
            known = self._readings.get(value[:10])
            if known is None:
                raise Undecodable(f"unknown schema fingerprint {value[2:10].hex()}")
            writer, reader, form = known
            start = 10
        elif value[:1] == CONFLUENT and len(value) >= 5:
            writer, reader, form = self._registered(int.from_bytes(value[1:5], "big"))
            start = 5
        else:
            raise Undecodable("neither Avro single-object encoding nor Confluent framing")
        source = BytesIO(value)
        source.seek(start)
        try:
            read: Any = fastavro.schemaless_reader(source, writer, reader)
            event: Event = form.to_value(read)
        except Exception as error:  # fastavro raises whatever a bad byte leads to: EOFError to IndexError
            raise Undecodable(f"{form.name}: the body does not fit its schema ({type(error).__name__})") from error
        if source.tell() != len(value):
            raise Undecodable(f"{form.name}: {len(value) - source.tell()} bytes left over")
        return event

    def _registered(self, schema_id: int) -> _Reading:
        key = CONFLUENT + schema_id.to_bytes(4, "big")
        known = self._readings.get(key)
        if known is not None:
            return known
        if self._registry is None:
            raise Undecodable(f"Confluent framing with schema id {schema_id}, but SCHEMA_REGISTRY_URL is not set")
        try:
            text = self._registry.schema_of(schema_id)
        except LookupError as error:
            raise Undecodable(f"schema id {schema_id}: {error}") from error
        try:
            schema = fastavro.parse_schema(json.loads(text))
        except Exception as error:  # fastavro raises whatever somebody's schema leads to: KeyError to RecursionError
            raise Undecodable(f"schema id {schema_id}: no Avro schema ({type(error).__name__})") from error
        cls = TYPES.get(str(schema.get("name", "")).rpartition(".")[2]) if isinstance(schema, dict) else None
        if cls is None:
            raise Undecodable(f"schema id {schema_id} is not one of Runfold's records")
        self._readings[key] = self._forms[cls].read_from(schema)
        return self._readings[key]


# ---- dicts to values. Each class gets one generated function: a generic walk was four times slower.


def _to_value(cls: type) -> Callable[[dict[str, Any]], Any]:
    scope: dict[str, Any] = {"cls": cls}
    parts = [f"{name}={_inward(hint, f'd[{name!r}]', scope)}" for name, hint in _hints(cls)]
    function: Callable[[dict[str, Any]], Any] = eval(f"lambda d: cls({', '.join(parts)})", scope)  # noqa: S307  our own names
    return function


def _hints(cls: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(cls, vars(types))
    return [(field.name, hints[field.name]) for field in fields(cls)]


def _inward(hint: Any, value: str, scope: dict[str, Any]) -> str:
    inner, shape = _nested(hint)
    if inner is None:
        return value
    name = f"in_{inner.__name__}"
    scope[name] = _to_value(inner)
    if shape == "list":
        return f"[{name}(x) for x in {value}]"
    if shape == "optional":
        return f"None if {value} is None else {name}({value})"
    return f"{name}({value})"


def _nested(hint: Any) -> tuple[type | None, str]:
    """The record class inside a type hint, and how it is wrapped; None for plain Avro types."""
    shape, inner = "plain", hint
    if get_origin(hint) is list:
        shape, inner = "list", get_args(hint)[0]
    elif get_origin(hint) in (Union, UnionType):
        shape, inner = "optional", next(argument for argument in get_args(hint) if argument is not NoneType)
    return (inner, shape) if isinstance(inner, type) and is_dataclass(inner) else (None, "")
