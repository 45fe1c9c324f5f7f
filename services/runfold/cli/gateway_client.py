"""The gateway as the commands see it: JSON over HTTP, and a run's events, followed across broken connections."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from runfold.ports import Permanent, Transient
from runfold.settings import Settings

TIMEOUT_S = 60.0  # of one answer; more than any wait that is asked for below
WAIT_S = 30.0  # of one long poll
AGAIN_S = 0.5  # before a broken stream is opened again
BROKEN_S = 30.0  # how long a gateway may be away before a follower gives up


class GatewayRefused(Exception):
    """The gateway said no, in words."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Seen:
    """One server-sent event; `id` is the offset of an event of the log."""

    event: str
    data: dict[str, Any]
    id: int | None = None


class GatewayClient:
    """Asks one gateway. Raises GatewayRefused for a no, Transient where nobody answers."""

    def __init__(self, settings: Settings) -> None:
        url = urlsplit(settings.gateway_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise Permanent(f"RUNFOLD_GATEWAY_URL is {settings.gateway_url!r}: write http://host:port")
        self._url = settings.gateway_url.rstrip("/")
        self._kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._host, self._port, self._base = url.hostname, url.port, url.path.rstrip("/")
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if settings.gateway_token:
            self._headers["Authorization"] = f"Bearer {settings.gateway_token}"

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and answer."""
        payload = None if body is None else json.dumps(body).encode()
        try:
            with closing(self._connection()) as connection:
                connection.request(method, self._base + path, payload, self._headers)
                answer = connection.getresponse()
                return answer.status, _read(answer)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def get(self, path: str) -> dict[str, Any]:
        return self.ask("GET", path)[1]

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self.ask("POST", path, body)[1]

    def completion(self, run_id: str) -> dict[str, Any]:
        """Waits for the run's end, however long that takes."""
        while True:
            status, found = self.ask("GET", run_path(run_id, f"result?wait={WAIT_S:g}"))
            if status == 200:
                return found

    def events(self, run_id: str) -> Iterator[Seen]:
        """All events of the run and the text between them, to its end; a broken connection is taken up where it was."""
        last = -1
        heard_s = time.monotonic()
        while True:
            try:
                with closing(self._connection()) as connection:
                    connection.request(
                        "GET", self._base + run_path(run_id, f"events?after={last}"), headers=self._headers
                    )
                    answer = connection.getresponse()
                    if answer.status != 200:
                        _read(answer)
                        return  # 204: all of it was seen
                    for seen in _events(answer):
                        heard_s = time.monotonic()
                        last = last if seen.id is None else seen.id
                        yield seen
                        if seen.event == "TaskReported" and seen.data.get("taken") == "effective":
                            return
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() - heard_s > BROKEN_S or last < 0:
                    raise self._unreachable(error) from error
            time.sleep(AGAIN_S)

    def _connection(self) -> http.client.HTTPConnection:
        return self._kind(self._host, self._port, timeout=TIMEOUT_S)

    def _unreachable(self, error: Exception) -> Transient:
        return Transient(
            f"no gateway answers at {self._url} ({error}): start `runfold gateway`, or set RUNFOLD_GATEWAY_URL"
        )


def run_path(run_id: str, rest: str = "") -> str:
    return f"/runs/{quote(run_id, safe='')}" + (f"/{rest}" if rest else "")


def _read(answer: http.client.HTTPResponse) -> dict[str, Any]:
    text = answer.read()
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = {"detail": f"the answer is no JSON: {text[:200]!r}"}
    if answer.status >= 400:
        raise GatewayRefused(answer.status, str(found.get("detail", answer.reason)))
    return dict(found)


def _events(lines: http.client.HTTPResponse) -> Iterator[Seen]:
    fields: dict[str, str] = {}
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line and "data" in fields:
            number = fields.get("id", "")
            yield Seen(fields.get("event", ""), json.loads(fields["data"]), int(number) if number else None)
        if not line:
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
