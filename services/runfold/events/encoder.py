"""Values to Avro binary, one function made for each schema at start.

fastavro encodes any dict by any schema; for our few record classes a function that knows the schema is four to five
times faster (measured: 7 against 31 µs for a dispatch, 15 against 78 µs for a reply, same machine), and every event is
encoded once on the hot path. A test compares the bytes with fastavro's for random values of every type.

Avro specification 1.12, "Binary encoding": long = zigzag varint; string and bytes = length and content; record = its
fields in order; array and map = one block and a zero; union = index and value.
"""

from collections.abc import Callable
from typing import Any

Encoder = Callable[[Any], bytes]
LONG_MAX = (1 << 63) - 1


def _varint(number: int) -> bytes:
    if not -LONG_MAX - 1 <= number <= LONG_MAX:
        raise OverflowError(f"{number} does not fit an Avro long")
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


SMALL = [_varint(number) for number in range(4096)]  # lengths and counters are nearly always here


def _long(number: int) -> bytes:
    return SMALL[number] if 0 <= number < 4096 else _varint(number)


def _string(text: str) -> bytes:
    content = text.encode()
    size = len(content)
    return (SMALL[size] if size < 4096 else _varint(size)) + content


def _bytes(content: bytes) -> bytes:
    return _long(len(content)) + content


def _boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"


PRIMITIVES: dict[str, Encoder] = {"long": _long, "string": _string, "bytes": _bytes, "boolean": _boolean}


def encoder_of(schema: Any, prefix: bytes = b"") -> Encoder:
    """The function that encodes values of this record schema (JSON), with a prefix before each. Raises ValueError."""
    return _record(schema, prefix, {})


def _encoder(schema: Any, named: dict[str, Encoder]) -> Encoder:
    if isinstance(schema, list):
        return _optional(schema, named)
    if isinstance(schema, str):
        if schema in PRIMITIVES:
            return PRIMITIVES[schema]
        return named[schema.rpartition(".")[2]]
    match schema["type"]:
        case "record":
            return _record(schema, b"", named)
        case "array":
            return _array(_encoder(schema["items"], named))
        case "map":
            return _map(_encoder(schema["values"], named))
        case other:
            return _encoder(other, named)


def _record(schema: Any, prefix: bytes, named: dict[str, Encoder]) -> Encoder:
    scope: dict[str, Any] = {}
    parts = []
    for index, field in enumerate(schema["fields"]):
        scope[f"f{index}"] = _encoder(field["type"], named)
        parts.append(f"f{index}(v.{field['name']})")
    head = f"{prefix!r}, " if prefix else ""
    encoder: Encoder = eval(f"lambda v: b''.join(({head}{', '.join(parts)},))", scope)  # noqa: S307  our own field names
    named[schema["name"].rpartition(".")[2]] = encoder
    return encoder


def _optional(schema: list[Any], named: dict[str, Encoder]) -> Encoder:
    if len(schema) != 2 or schema[0] != "null":
        raise ValueError(f"only optional unions are used, not {schema}")
    inner = _encoder(schema[1], named)
    return lambda value: b"\0" if value is None else b"\2" + inner(value)


def _array(item: Encoder) -> Encoder:
    return lambda values: b"".join([_long(len(values)), *map(item, values), b"\0"]) if values else b"\0"


def _map(item: Encoder) -> Encoder:
    def encode(values: dict[str, Any]) -> bytes:
        if not values:
            return b"\0"
        return b"".join([_long(len(values)), *(_string(name) + item(value) for name, value in values.items()), b"\0"])

    return encode
