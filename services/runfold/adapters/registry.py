"""A schema registry with Confluent's HTTP interface, for `events.codec.Codec`. Standard library only.

The subject of a record is "<topic>-runfold.<Record>" (TopicRecordNameStrategy): one topic holds many types, each with a
history of its own. Every record of Runfold belongs on one topic, so one codec serves them all: `topic_of` says which.

The registry is asked when a codec is made (once for each type) and when an id comes that is not known yet; never again
for the same. A registry that does not answer is asked again for `PATIENCE_S`, on the caller's thread.

- Permanent: the registry says no (incompatible schema, wrong credentials), or is none.
- Transient: it did not answer. Nothing is known of the record, so it must not count as undecodable.
- LookupError: it has no schema of that id. Remembered for `FORGET_S`, so that a flood of such records costs little.
"""

import base64
import json
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from runfold.adapters.topics import TopicNames
from runfold.core.limits import shortened
from runfold.events.text import sanitised
from runfold.events.types import (
    ModelTextDelta,
    Quarantined,
    TaskCancelled,
    TaskCompleted,
    TaskRequested,
    ToolOutputChunk,
)
from runfold.ports import Permanent, Transient

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
TIMEOUT_S = 5.0  # of one request
PATIENCE_S = 15.0  # of all attempts of one question; well below the time a consumer may spend between two polls
PAUSE_S = 0.5
FORGET_S = 30.0  # a registry's replicas learn a new id within seconds
UNKNOWN_MAX = 10_000  # ids that are remembered as unknown
ANSWER_BYTES_MAX = 4 * 1024 * 1024
SAID_CHARS_MAX = 300  # of an answer inside a message
NOT_FOUND, CONFLICT, TOO_MANY = 404, 409, 429


class _Refused(Exception):
    """The registry answered, and not with success."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


class SchemaRegistry:
    """Ids to schemas and back. Any thread."""

    def __init__(
        self,
        url: str,
        topic_of: Callable[[str], str],
        *,
        patience_s: float = PATIENCE_S,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url, self._headers = _address(url)
        self._topic_of = topic_of
        self._patience_s = patience_s
        self._now_s = now_s
        self._pause = pause
        self._lock = threading.Lock()
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, str] = {}
        self._unknown: dict[int, float] = {}  # id to when it was asked for

    def id_of(self, record: str, schema: str) -> int:
        """The id of this schema (JSON text) under its subject, registered if need be."""
        subject = f"{self._topic_of(record)}-runfold.{record}"
        known = self._ids.get((subject, schema))
        if known is not None:
            return known
        path = f"/subjects/{quote(subject, safe='')}/versions"
        try:
            answer = self._ask(path, {"schema": schema, "schemaType": "AVRO"})
        except _Refused as error:
            if error.status == CONFLICT:
                raise Permanent(
                    f"the schema registry refuses {subject}: this version is not compatible with those before ({error})"
                ) from error
            raise Permanent(f"the schema registry at {self._url} refuses {subject}: {error}") from error
        schema_id = answer.get("id")
        if type(schema_id) is not int or not 0 <= schema_id < 1 << 32:
            raise Permanent(f"the schema registry at {self._url} gave no id for {subject}: {_shown(answer)}")
        with self._lock:
            self._ids[subject, schema] = schema_id
            self._schemas[schema_id] = schema
            self._unknown.pop(schema_id, None)
        return schema_id

    def schema_of(self, schema_id: int) -> str:
        """The schema (JSON text) with this id. Raises LookupError when the registry has none."""
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        asked_s = self._unknown.get(schema_id)
        if asked_s is not None and self._now_s() - asked_s < FORGET_S:
            raise LookupError("the schema registry has none of this id")
        try:
            answer = self._ask(f"/schemas/ids/{schema_id}", None)
        except _Refused as error:
            if error.status != NOT_FOUND:
                raise Permanent(f"the schema registry at {self._url} refuses id {schema_id}: {error}") from error
            self._remember_unknown(schema_id)
            raise LookupError("the schema registry has none of this id") from error
        schema = answer.get("schema")
        if not isinstance(schema, str) or answer.get("schemaType", "AVRO") != "AVRO":
            self._remember_unknown(schema_id)
            raise LookupError(f"the schema registry has no Avro schema of this id: {_shown(answer)}")
        with self._lock:
            self._schemas[schema_id] = schema
        return schema

    def _remember_unknown(self, schema_id: int) -> None:
        with self._lock:
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown[schema_id] = self._now_s()

    # ---- HTTP

    def _ask(self, path: str, body: dict[str, str] | None) -> dict[str, Any]:
        """The answer as JSON. Asks again while there is none. Raises _Refused, Transient."""
        until_s = self._now_s() + self._patience_s
        while True:
            try:
                return self._ask_once(path, body)
            except Transient:
                if self._now_s() + PAUSE_S >= until_s:
                    raise
            self._pause(PAUSE_S)

    def _ask_once(self, path: str, body: dict[str, str] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data, self._headers)  # noqa: S310  `_address` took http and https only
        try:
            with urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310  the same
                content: bytes = response.read(ANSWER_BYTES_MAX)
        except HTTPError as error:
            with error:
                said = _shown(error.read(ANSWER_BYTES_MAX))
            if error.code >= 500 or error.code == TOO_MANY:
                raise Transient(f"the schema registry at {self._url} failed: {error.code}: {said}") from error
            raise _Refused(error.code, said) from error
        except (OSError, HTTPException) as error:  # no connection, no answer in time, an answer that broke off
            raise Transient(f"the schema registry at {self._url} does not answer: {error}") from error
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise Permanent(f"at {self._url} is no schema registry: it answered {_shown(content)}") from error
        if not isinstance(answer, dict):
            raise Permanent(f"at {self._url} is no schema registry: it answered {_shown(content)}")
        return answer


def topic_of(names: TopicNames) -> Callable[[str], str]:
    """The topic of each record of one installation: that of the runs, unless it is one of the few others."""
    others = {
        TaskRequested.__name__: names.requests,
        TaskCancelled.__name__: names.requests,
        TaskCompleted.__name__: names.completions,
        ModelTextDelta.__name__: names.stream,
        ToolOutputChunk.__name__: names.stream,
        Quarantined.__name__: names.quarantine,
    }
    return lambda record: others.get(record, names.events)


def _address(url: str) -> tuple[str, dict[str, str]]:
    """The address without credentials, and the headers that carry them. Raises Permanent."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not url.isascii() or not url.isprintable() or " " in url:
        raise Permanent("SCHEMA_REGISTRY_URL: not an address like https://user:password@host:port")  # keep the secret
    headers = {"Accept": f"{MEDIA_TYPE}, application/json", "Content-Type": MEDIA_TYPE}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), headers


def _shown(answer: object) -> str:
    """What the registry said, its own message first if it gave one."""
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else json.dumps(answer)
    try:
        said = json.loads(text)
        text = f"{said['message']} ({said['error_code']})"
    except (ValueError, LookupError, TypeError):
        pass
    return shortened(sanitised(text), SAID_CHARS_MAX)
