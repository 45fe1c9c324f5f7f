"""The scripted model server: `python -m runfold.dev.model_server --script FILE`, or `ModelServer` in a test.

What it plays is said in `script.py`, how in `scripted_app.py`; here is its socket. No secrets: it is for tests and
demonstrations, and listens on loopback unless told otherwise.
"""

import argparse
import logging
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn

from runfold.dev.script import ScriptError, load_script, parse_script
from runfold.dev.scripted_app import Received, ScriptedApp

STOP_S = 10.0


class ModelServer:
    """The scripted server in a thread: `with ModelServer(script) as server: ... server.base_url`."""

    def __init__(
        self,
        script: Mapping[str, Any],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        count_replies: bool = False,
        last_only: bool = False,
    ) -> None:
        self.app = ScriptedApp(parse_script(script), count_replies=count_replies, last_only=last_only)
        # Listening from here on: clients may connect before the thread runs, and wait for it.
        self._socket = _listener(host, port)
        self.base_url = f"http://{host}:{self._socket.getsockname()[1]}/v1"
        self._server = uvicorn.Server(_config(self.app))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="model-server")

    @property
    def requests(self) -> list[Received]:
        return self.app.requests

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self._socket.close()


def main(arguments: list[str]) -> int:
    """Serve a script from a file until interrupted."""
    parser = argparse.ArgumentParser(prog="runfold.dev.model_server", description="Plays a script of model replies.")
    parser.add_argument("--script", type=Path, required=True, help="JSON file: scenario name to list of replies")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--count-replies", action="store_true", help="choose by replies given, not by history")
    options = parser.parse_args(arguments)
    return serve(options.script, options.port, host=options.host, count_replies=options.count_replies)


def serve(script: Path, port: int, *, host: str = "127.0.0.1", count_replies: bool = False) -> int:
    """Serve until interrupted; the first line says where. Answers the exit status."""
    try:
        app = ScriptedApp(load_script(script), count_replies=count_replies, last_only=True)
    except ScriptError as error:
        print(error, file=sys.stderr)
        return 2
    with _listener(host, port) as listener:
        print(f"model server at http://{host}:{listener.getsockname()[1]}/v1", flush=True)
        uvicorn.Server(_config(app)).run([listener])
    return 0


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.create_server((host, port), backlog=1024)
    # asyncio sets it for sockets that it makes itself; without, each answer waits 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _config(app: ScriptedApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        log_level=logging.CRITICAL + 1,  # a cut is an exception on purpose
        lifespan="off",
        timeout_keep_alive=60,  # longer than clients keep a connection: else both end it at once, and a call is lost
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
