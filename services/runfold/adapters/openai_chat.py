"""The model behind any Chat Completions API, through the `openai` package.

One thread with one event loop holds all streams; the executor's thread only builds the messages. The package is used
for transport alone. It never retries (a retry is a decision, recorded in the log), and its timeout is per read, so the
time limit of an attempt is a clock of our own. Chunks are read raw and put together by `chat_assembler`.

Whatever a read raises is an outcome: broken JSON and bytes that are no UTF-8 come as plain exceptions, not as the
package's. A cut after the finish reason loses at most the usage, so the reply counts.
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import httpx2
from openai import APIConnectionError, APIError, AsyncOpenAI, AsyncStream

from runfold.adapters.chat_assembler import ChatAssembler, IncompleteReply, ProviderError
from runfold.adapters.chat_clients import Clients
from runfold.adapters.chat_errors import Failure, Stage, failure_of
from runfold.adapters.chat_history import (
    HistoryStyle,
    Message,
    chat_messages,
    chat_tools,
    encoded,
    history_problem,
    json_value,
    load_payloads,
    unloaded,
)
from runfold.adapters.merged_text import Later, MergedText
from runfold.events.types import ModelFailed, ModelReplied
from runfold.ports import Blobs, InvariantViolation, ModelOutcome, ModelRequest

log = logging.getLogger(__name__)

CONNECT_S = 10.0
USAGE_GRACE_S = 5.0  # after the finish reason only usage can follow, and some servers never close the body
CLOSE_S = 10.0
HEADER_SAFE = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"


@dataclass(slots=True, frozen=True, kw_only=True)
class ChatOptions:
    """One provider. What is optional in the API is sent only if it is set here: many servers refuse what is new."""

    base_url: str
    api_key: str = ""
    stream: bool = True
    send_stream_options: bool = True  # ask for usage in the stream; old vLLM and Azure versions refuse it
    max_tokens: int | None = None
    max_tokens_field: str = "max_completion_tokens"  # older servers know only max_tokens
    parallel_tool_calls: bool | None = None
    send_prompt_cache_key: bool = False
    send_result_schema: bool = True
    extra_headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    extra_body: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # temperature and the like
    style: HistoryStyle = field(default_factory=HistoryStyle)
    in_flight_max: int = 512  # sockets of one process
    stall_s: float = 60.0  # of a stream: longest wait for the next bytes


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One call in flight."""

    request: ModelRequest
    messages: list[Message]
    done: Callable[[ModelOutcome], None]
    delta: Callable[[int, str], None]
    started_s: float
    assembler: ChatAssembler = field(default_factory=ChatAssembler)
    later: Later  # a timer of the event loop
    text: MergedText = field(init=False)
    stage: Stage = Stage.PREPARING
    request_id: str | None = None
    first_token_ms: int | None = None

    def __post_init__(self) -> None:
        self.text = MergedText(self.show, self.later)

    def elapsed_ms(self) -> int:
        return int((time.monotonic() - self.started_s) * 1000)

    def took(self, text: str) -> None:
        """A piece of the reply was put in."""
        if self.first_token_ms is None and self.assembler.has_content:
            self.first_token_ms = self.elapsed_ms()
        self.text.add(text)

    def show(self, offset: int, text: str) -> None:
        try:
            self.delta(offset, text)
        except Exception:  # for eyes only: never worth a reply that is paid for
            log.exception("text delta of run %s was lost", self.request.run_id)

    def replied(self) -> ModelReplied:
        reply = self.assembler.reply()
        return ModelReplied(
            model_call=self.request.call,
            items=reply.items,
            finish_reason=reply.finish_reason,
            model=reply.model,
            usage=reply.usage,
            request_id=self.request_id,
            first_token_ms=self.first_token_ms,
            duration_ms=self.elapsed_ms(),
        )

    def failed(self, failure: Failure) -> ModelFailed:
        return ModelFailed(
            model_call=self.request.call,
            kind=failure.kind,
            message=failure.message,
            retryable=failure.retryable,
            retry_after_ms=failure.retry_after_ms,
            status=failure.status,
            request_id=failure.request_id or self.request_id,
            duration_ms=self.elapsed_ms(),
            usage=self.assembler.usage,
            chars=self.assembler.chars,
        )

    def outcome_after(self, error: Exception | None) -> ModelOutcome:
        is_answered = isinstance(error, ProviderError | APIError) and not isinstance(error, APIConnectionError)
        if error is not None and (is_answered or not self.assembler.is_finished):
            return self.failed(failure_of(error, self.stage))
        try:
            return self.replied()
        except (IncompleteReply, RecursionError) as unusable:
            return self.failed(failure_of(unusable, Stage.READING))


class ChatModel:
    """Implements `ports.Model`. `start` and `stop` may be called from any thread."""

    def __init__(self, options: ChatOptions, blobs: Blobs | None = None) -> None:
        self._options = options
        self._blobs = blobs
        self._clients = Clients(base_url=options.base_url, api_key=options.api_key, headers=options.extra_headers)
        self._places = asyncio.Semaphore(options.in_flight_max)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # touched on the loop's thread only
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-streams", daemon=True)
        self._thread.start()

    def start(
        self,
        request: ModelRequest,
        done: Callable[[ModelOutcome], None],
        delta: Callable[[int, str], None],
    ) -> ModelOutcome | None:
        # Here and not in the loop, so that a broken history stops the caller instead of getting lost in a thread.
        messages = chat_messages(request.instructions, request.transcript, self._options.style)
        problem = history_problem(messages)
        if problem is not None:
            raise InvariantViolation(f"history of run {request.run_id} may not be sent: {problem}")
        attempt = _Attempt(
            request=request,
            messages=messages,
            done=done,
            delta=delta,
            later=self._loop.call_later,
            started_s=time.monotonic(),
        )
        try:
            self._loop.call_soon_threadsafe(self._begin, attempt)
        except RuntimeError:
            return attempt.failed(failure_of(asyncio.CancelledError(), Stage.PREPARING))
        return None

    def stop(self, call: str) -> None:
        try:
            self._loop.call_soon_threadsafe(self._cancel, call)
        except RuntimeError:
            log.debug("call %s ended with the thread", call)

    def close(self) -> None:
        """Stop every call and end the thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()

    async def _shut_down(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._clients.close()
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _begin(self, attempt: _Attempt) -> None:
        call = attempt.request.call
        task = self._loop.create_task(self._attempt(attempt))
        self._tasks[call] = task
        task.add_done_callback(lambda _: self._tasks.pop(call, None))

    def _cancel(self, call: str) -> None:
        if task := self._tasks.get(call):
            task.cancel()

    async def _attempt(self, attempt: _Attempt) -> None:
        """One call, from the wait for a place to its outcome. A cancelled one ends in silence: nobody waits."""
        error: Exception | None = None
        try:
            async with asyncio.timeout(attempt.request.time_limit_s) as limit, self._places:
                if unloaded(attempt.messages):
                    await asyncio.to_thread(self._load, attempt.messages)
                with self._clients.lent() as client:
                    await self._read(client, attempt, limit)
        except Exception as caught:  # noqa: BLE001 (whatever a read raises is an outcome)
            error = caught
        finally:
            attempt.text.flush()
        attempt.done(attempt.outcome_after(error))

    def _load(self, messages: list[Message]) -> None:
        if self._blobs is None:
            raise LookupError("a payload is in the blob store, and this model was given none")
        load_payloads(messages, self._blobs.get)

    def _body(self, attempt: _Attempt) -> Message:
        options, request = self._options, attempt.request
        body: Message = {"model": request.model, "messages": attempt.messages, "stream": options.stream}
        if request.tools:
            body["tools"] = chat_tools(request.tools)
            if options.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = options.parallel_tool_calls
            if not request.may_call:  # named all the same: the history speaks of them
                body["tool_choice"] = "none"
        if request.result_schema and options.send_result_schema:
            schema = {"name": "result", "schema": json_value(request.result_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        bounds = [bound for bound in (options.max_tokens, request.output_tokens_max) if bound is not None]
        if bounds:
            body[options.max_tokens_field] = min(bounds)
        if options.send_prompt_cache_key:
            body["prompt_cache_key"] = request.run_id
        if options.stream and options.send_stream_options:
            body["stream_options"] = {"include_usage": True}
        return body | dict(options.extra_body)

    async def _read(self, client: AsyncOpenAI, attempt: _Attempt, limit: asyncio.Timeout) -> None:
        """Send the request and put the reply in. Ends early with a reply that no record could hold."""
        body = encoded(self._body(attempt))
        attempt.stage = Stage.SENT
        # Also for a whole reply: the package's stream gives the raw body and the headers.
        stream = await client.post(
            "/chat/completions",
            cast_to=object,
            content=body,
            options={"headers": self._headers(attempt.request), "timeout": self._timeout(attempt.request)},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        async with stream:
            attempt.stage = Stage.READING
            attempt.request_id = stream.response.headers.get("x-request-id")
            is_json = stream.response.headers.get("content-type", "").startswith("application/json")
            if is_json or not self._options.stream:
                attempt.took(attempt.assembler.feed_whole(json.loads(await stream.response.aread())))
                return
            async for chunk in stream:
                was_finished = attempt.assembler.is_finished
                attempt.took(attempt.assembler.feed(chunk))
                if attempt.assembler.is_too_large:
                    return
                if attempt.assembler.is_finished and not was_finished:
                    limit.reschedule(min(limit.when() or 0, self._loop.time() + USAGE_GRACE_S))

    def _headers(self, request: ModelRequest) -> dict[str, str]:
        """Names for gateways and scripted servers to tell runs apart. Percent-encoded: headers are ASCII."""
        return {
            "x-runfold-run": quote(request.run_id, safe=HEADER_SAFE),
            "x-runfold-call": quote(request.call, safe=HEADER_SAFE),
        }

    def _timeout(self, request: ModelRequest) -> httpx2.Timeout:
        limit_s = request.time_limit_s
        # A whole reply is silent until it is done: only a stream can be seen to stall.
        read_s = min(self._options.stall_s, limit_s) if self._options.stream else limit_s
        return httpx2.Timeout(limit_s, connect=min(CONNECT_S, limit_s), read=read_s)
