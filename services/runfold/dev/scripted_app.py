"""The scripted model server without its socket: an ASGI application that plays a script over Chat Completions.

It holds no conversation. The reply is chosen by the number of assistant messages in the request's history, so a retry
or a caller that was restarted gets the same reply; with `count_replies` by the number of replies given to the run,
for scripts whose replies leave no trace in the history. The scenario is named by the header `x-runfold-run` or by the
request's model. With `refuse` it is as strict as the strictest server: what that finds wrong with a history is
answered with a 400. It speaks ASGI itself: a cut connection and a client that goes away need that level.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from runfold.dev.script import Fault, Script, ScriptedReply, body_of, events_of, parse_script, usage_of, with_ids

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Refuse = Callable[[list[Any]], str | None]  # messages of a request: what is wrong with them

LOOK_MS = 5  # for the file that a reply waits for
REQUESTS_KEPT = 1_000  # histories grow with their runs: unbounded, a long test would hold every prefix
SSE = "text/event-stream"
JSON = "application/json"
ERROR_CODES = {
    401: "invalid_api_key", 402: "insufficient_balance", 404: "model_not_found", 429: "rate_limit_exceeded",
    500: "server_error", 503: "slow_down",
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Received:
    """One request, as it came."""

    run: str
    call: str
    position: int
    headers: Mapping[str, str]
    body: dict[str, Any]


class _Cut(Exception):
    """Makes the server drop the connection in the middle of a body."""


class ScriptedApp:
    """The server without its socket: an ASGI application."""

    def __init__(self, script: Script, *, count_replies: bool = False, last_only: bool = False) -> None:
        self.disconnects = 0  # clients that went away before the reply was whole
        self.disconnected = threading.Event()  # set at the first one, for tests that wait for it
        self.requests_total = 0
        self.refuse: Refuse | None = None
        self._script = dict(script)
        self._count_replies = count_replies
        self._last_only = last_only
        self._received: deque[Received] = deque(maxlen=REQUESTS_KEPT)
        self._last: dict[str, Received] = {}
        self._replies: dict[str, int] = {}
        self._attempts: dict[tuple[str, int], int] = {}

    @property
    def requests(self) -> list[Received]:
        """What came, in order: the latest of all, or the last of each run."""
        return list(self._last.values()) if self._last_only else list(self._received)

    def add(self, scenario: str, replies: Sequence[object]) -> None:
        """One more scenario, or another script for one that is there. Raises ScriptError."""
        self._script |= parse_script({scenario: replies})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"].removesuffix("/")
        if path.endswith("/chat/completions") and scope["method"] == "POST":
            await self._chat(scope, receive, send)
        elif path.endswith("/models") and scope["method"] == "GET":
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "script"} for name in self._script]
            await _whole(send, 200, json.dumps({"object": "list", "data": models}))
        else:
            await _error(send, 404, f"no such path: {path}")

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = json.loads(await _body(receive))
            history = [message["role"] for message in body["messages"]]
            model = body["model"]
        except (ValueError, KeyError, TypeError) as error:
            await _error(send, 400, f"not a chat request: {error!r}")
            return
        header = unquote(headers.get("x-runfold-run", ""))
        run = header or model
        position = self._replies.get(run, 0) if self._count_replies else history.count("assistant")
        self._record(
            Received(run=run, call=headers.get("x-runfold-call", ""), position=position, headers=headers, body=body)
        )
        replies = self._script.get(header) or self._script.get(model)
        problem = self.refuse(body["messages"]) if self.refuse is not None else None
        if problem is not None:
            await _error(send, 400, f"history refused: {problem}")
        elif replies is None:
            await _error(send, 404, f"the script has no scenario {header or model!r}")
        elif position >= len(replies):
            await _error(send, 400, f"the script of {model!r} ends after {len(replies)} replies")
        else:
            await self._play(_Exchange(self, run, position, body, receive, send), replies[position])

    async def _play(self, exchange: "_Exchange", reply: ScriptedReply) -> None:
        fault = self._fault(exchange.run, exchange.position, reply)
        watcher = asyncio.ensure_future(exchange.watch())
        try:
            is_whole = await exchange.send_reply(with_ids(reply, exchange.position), fault or Fault())
        except _Cut:
            raise
        except OSError:
            is_whole = False
        finally:
            watcher.cancel()
        if not is_whole:
            self.disconnects += 1
            self.disconnected.set()
        if fault is None:
            self._replies[exchange.run] = exchange.position + 1

    def _fault(self, run: str, position: int, reply: ScriptedReply) -> Fault | None:
        """The fault of this attempt, if it is one that fails."""
        if reply.fault is None:
            return None
        attempt = self._attempts[run, position] = self._attempts.get((run, position), 0) + 1
        return reply.fault if reply.fault.times is None or attempt <= reply.fault.times else None

    def _record(self, received: Received) -> None:
        self.requests_total += 1
        if self._last_only:
            self._last[received.run] = received
        else:
            self._received.append(received)


class _Exchange:
    """One request and its reply."""

    def __init__(
        self, app: ScriptedApp, run: str, position: int, body: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        self.run = run
        self.position = position
        self._body = body
        self._receive = receive
        self._send = send
        self._gone = asyncio.Event()
        self._request_id = f"req_{app.requests_total}"

    async def watch(self) -> None:
        """Notice that the client went away."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()

    async def send_reply(self, reply: ScriptedReply, fault: Fault) -> bool:
        """Play the reply with its fault. Answers whether the client stayed to the end."""
        if fault.blank:
            reply = ScriptedReply(usage=reply.usage)
        if not await self._pause(reply.delay_ms) or not await self._file(reply.until_file):
            return False
        if fault.status is not None:
            await _error(self._send, fault.status, "scripted fault", error=fault.error, headers=_fault_headers(fault))
            return True
        is_stream = bool(self._body.get("stream")) and reply.body is None and not fault.as_json
        envelope = {"id": f"chatcmpl-{self.run}-{self.position}", "model": self._body["model"], "created": 0}
        usage = usage_of(self._body, reply)
        if not is_stream:
            return await self._send_pieces(reply.status, JSON, [body_of(reply, envelope, usage)], fault)
        if reply.sse is not None:
            return await self._send_pieces(reply.status, SSE, [reply.sse], fault)
        asked = (self._body.get("stream_options") or {}).get("include_usage")
        lines = events_of(reply, envelope, usage if asked else None)
        return await self._send_pieces(reply.status, SSE, _spoilt(lines, fault, send_done=reply.send_done), fault)

    async def _send_pieces(self, status: int, media: str, pieces: list[str], fault: Fault) -> bool:
        # Recorded text may hold escaped bytes that are no UTF-8: they go out as they were.
        payloads = [piece.encode(errors="surrogateescape") for piece in ([] if fault.empty else pieces)]
        is_plain = fault.trickle_ms is None and fault.cut_after_chunks is None and fault.cut_after_bytes is None
        if is_plain:  # at once: a test with thousands of calls pays for every send
            await _whole(self._send, status, b"".join(payloads), media=media, request_id=self._request_id)
            return not self._gone.is_set()
        if fault.cut_after_bytes is not None:
            payloads = [b"".join(payloads)[: fault.cut_after_bytes]]
        await self._send(_start(status, media, self._request_id, {}))
        for number, payload in enumerate(payloads):
            if fault.cut_after_chunks is not None and number >= fault.cut_after_chunks:
                break
            if not await self._pause(fault.trickle_ms or 0):
                return False
            await self._send({"type": "http.response.body", "body": payload, "more_body": True})
        if fault.cut_after_chunks is not None or fault.cut_after_bytes is not None:
            raise _Cut
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        return not self._gone.is_set()

    async def _pause(self, pause_ms: int) -> bool:
        """Wait; less if the client goes away. Answers whether it is still there."""
        if pause_ms:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), pause_ms / 1000)
        return not self._gone.is_set()

    async def _file(self, awaited: Path | None) -> bool:
        """Wait until somebody makes it, or the client goes away. Answers whether it is still there."""
        while awaited is not None and not awaited.exists():  # noqa: ASYNC240  one look at a local disk
            if not await self._pause(LOOK_MS):
                return False
        return not self._gone.is_set()


def _spoilt(lines: list[str], fault: Fault, *, send_done: bool) -> list[str]:
    """The events of a stream, with what the fault does to them."""
    if fault.no_finish:
        lines = [line for line in lines if '"finish_reason":"' not in line and '"usage":{' not in line]
    events = [f"data: {line}\n\n" for line in lines]
    if fault.bad_chunk:
        events.insert(1, "data: {this is not JSON\n\n")
    if fault.error_chunk:
        error = (
            {"message": "scripted fault", "code": "server_error"} if fault.error_chunk is True else fault.error_chunk
        )
        events.insert(1, f"data: {json.dumps({'error': error})}\n\n")
    return events if fault.no_finish or not send_done else [*events, "data: [DONE]\n\n"]


def _fault_headers(fault: Fault) -> dict[str, str]:
    return fault.headers | ({"retry-after": str(fault.retry_after)} if fault.retry_after is not None else {})


async def _body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


def _start(status: int, media: str, request_id: str, headers: Mapping[str, str]) -> dict[str, Any]:
    named = {"content-type": media, "x-request-id": request_id, **headers}
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }


async def _whole(
    send: Send,
    status: int,
    body: str | bytes,
    *,
    media: str = JSON,
    request_id: str = "",
    headers: Mapping[str, str] = {},
) -> None:
    payload = body.encode() if isinstance(body, str) else body
    await send(_start(status, media, request_id, {**headers, "content-length": str(len(payload))}))
    await send({"type": "http.response.body", "body": payload})


async def _error(
    send: Send, status: int, message: str, *, error: str | dict[str, Any] | None = None, headers: Mapping[str, str] = {}
) -> None:
    fitting = {"message": message, "type": "invalid_request_error", "code": ERROR_CODES.get(status), "param": None}
    body = error if isinstance(error, str) else json.dumps({"error": error or fitting})
    await _whole(send, status, body, headers=headers, request_id="req_error")
