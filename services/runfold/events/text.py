"""Text from outside, made safe for every reader after us: Avro, Kafka, Postgres, model APIs.

Models and tools produce lone surrogates (Avro and HTTP clients refuse to encode them) and NUL (Postgres refuses to
store it). One poisoned text would block a run for ever, so each is replaced once, at the ingress.
"""

from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def sanitised(text: str) -> str:
    """The text with surrogate halves joined where they make a pair, others and NUL replaced by U+FFFD."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", REPLACEMENT) if "\0" in text else text


def decoded(payload: bytes) -> str:
    """Bytes as text: UTF-8, anything else replaced."""
    return sanitised(payload.decode("utf-8", "replace"))


def sanitised_tree(value: Any) -> Any:
    """A JSON value with every text in it sanitised, names too."""
    match value:
        case str():
            return sanitised(value)
        case list():
            return [sanitised_tree(entry) for entry in value]
        case dict():
            return {sanitised(name): sanitised_tree(entry) for name, entry in value.items()}
    return value
