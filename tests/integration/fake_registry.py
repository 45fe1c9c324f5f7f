"""A schema registry that speaks Confluent's interface over real HTTP, as far as it is used; and can be broken."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Registry(ThreadingHTTPServer):
    """Confluent's interface as far as it is used: ids, subjects, 404 with its codes, 409 for what is incompatible."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.schemas: list[Any] = []  # the id is the place, from 1
        self.subjects: dict[str, list[Any]] = {}
        self.asked: list[str] = []
        self.authorization: str | None = None
        self.broken: list[tuple[int, bytes]] = []  # answers to give first; a status of 0 hangs up
        self.always: tuple[int, bytes] | None = None  # the same, until it is taken away

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def register(self, subject: str, schema: Any) -> tuple[int, Any]:
        versions = self.subjects.setdefault(subject, [])
        fields = [{field["name"]: field["type"] for field in version["fields"]} for version in [*versions, schema]]
        for before in fields[:-1]:
            if any(before.get(name, kind) != kind for name, kind in fields[-1].items()):
                return 409, {"error_code": 409, "message": f"Schema being registered is incompatible for {subject}"}
        if schema not in versions:
            versions.append(schema)
        if schema not in self.schemas:
            self.schemas.append(schema)
        return 200, {"id": self.schemas.index(schema) + 1}

    def schema(self, schema_id: int) -> tuple[int, Any]:
        if not 1 <= schema_id <= len(self.schemas):
            return 404, {"error_code": 40403, "message": f"Schema {schema_id} not found"}
        found = self.schemas[schema_id - 1]
        return 200, {"schema": json.dumps(found)} if isinstance(found, dict) else found[0]


class Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        kind, _, schema_id = self.path.rpartition("/")
        assert kind == "/schemas/ids"
        self.answer(*self.server.schema(int(schema_id)))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, subjects, subject, versions = self.path.split("/")
        assert (subjects, versions) == ("subjects", "versions")
        assert (self.headers["Content-Type"], body["schemaType"]) == ("application/vnd.schemaregistry.v1+json", "AVRO")
        self.answer(*self.server.register(unquote(subject), json.loads(body["schema"])))

    def answer(self, status: int, said: Any) -> None:
        self.server.asked.append(f"{self.command} {unquote(self.path)}")
        self.server.authorization = self.headers["Authorization"]
        content = json.dumps(said).encode()
        if self.server.always is not None:
            status, content = self.server.always
        elif self.server.broken:
            status, content = self.server.broken.pop(0)
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry on a free port of loopback."""
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
