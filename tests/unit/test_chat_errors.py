"""Classifying failed model calls: the dialects of providers, and what may be tried again."""

import asyncio
import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from runfold.adapters.chat_assembler import IncompleteReply, ProviderError
from runfold.adapters.chat_errors import RETRYABLE, Stage, failure_of, failure_of_body


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (429, {"code": "rate_limit_exceeded"}, "rate_limited"),
        (429, {"message": "Request too large: tokens per min, reduce the length of the messages"}, "rate_limited"),
        (503, {"code": "slow_down"}, "rate_limited"),
        (429, {"code": "insufficient_quota"}, "no_money"),
        (402, {"message": "Insufficient Balance"}, "no_money"),
        (400, {"message": "Your credit balance is too low"}, "no_money"),
        (400, {"code": "context_length_exceeded"}, "context_exhausted"),
        (400, {"message": "This model's maximum context length is 8192 tokens"}, "context_exhausted"),
        (400, {"message": "prompt is too long: 210000 tokens"}, "context_exhausted"),
        (
            400,
            {"type": "exceed_context_size_error", "message": "exceeds the available context size"},
            "context_exhausted",
        ),
        (
            400,
            {"message": "The input token count (1) exceeds the maximum number of tokens allowed"},
            "context_exhausted",
        ),
        (413, {}, "context_exhausted"),
        (400, {"code": "tool_use_failed", "failed_generation": ""}, "malformed_call"),
        (500, {"message": "Failed to parse tool call arguments as JSON"}, "malformed_call"),
        (400, {"code": "content_filter", "innererror": {"code": "ResponsibleAIPolicyViolation"}}, "refused"),
        (400, {"code": "unsupported_parameter"}, "bad_request"),
        (422, {"detail": "field required"}, "bad_request"),
        (401, {}, "auth"),
        (403, {}, "auth"),
        (404, {"code": "model_not_found"}, "not_found"),
        (408, {}, "transient"),
        (409, {}, "transient"),
        (500, {}, "transient"),
        (529, {"type": "overloaded_error"}, "transient"),
        (None, {"code": 502, "message": "upstream"}, "transient"),
        (None, {"code": "400", "message": "prompt is too long"}, "context_exhausted"),
        (None, {"type": "invalid_request_error"}, "bad_request"),
        (None, {"type": "server_error"}, "transient"),
        (None, "something went wrong", "transient"),
        (200, {"code": 429}, "rate_limited"),
    ],
)
def test_kinds(status: int | None, error: Any, kind: str) -> None:
    """An error says what it is in its status, code, type or text; only some may be tried again."""
    for body in ({"error": error}, error):  # vLLM sends it flat
        failure = failure_of_body(body, status=status)
        assert failure.kind == kind
        assert failure.retryable == (kind in RETRYABLE)


@pytest.mark.parametrize(
    ("headers", "message", "wait_ms"),
    [
        ({"retry-after": "2"}, "", 2_000),
        ({"retry-after-ms": "150", "retry-after": "1"}, "", 150),
        ({"retry-after": "7200"}, "", 7_200_000),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "nan"}, "", None),
        ({"retry-after": "-3"}, "", None),
        ({}, "Please try again in 1m2.5s.", 62_500),
        ({}, "Please try again in 20ms.", 20),
        ({}, "later", None),
    ],
)
def test_the_wait_that_was_asked_for(headers: dict[str, str], message: str, wait_ms: int | None) -> None:
    """In a header or in words; nonsense is no wait."""
    assert failure_of_body({"message": message}, status=429, headers=headers).retry_after_ms == wait_ms


def test_the_wait_may_be_a_date() -> None:
    """Retry-After allows an HTTP date; one in the past is no wait."""
    for at_s, is_wait in ((time.time() + 3_600, True), (time.time() - 3_600, False)):
        failure = failure_of_body({}, status=503, headers={"retry-after": formatdate(at_s, usegmt=True)})
        assert (failure.retry_after_ms is not None) == is_wait


def test_the_server_may_forbid_a_retry() -> None:
    """OpenAI's x-should-retry wins over the status; the request id is kept for support."""
    failure = failure_of_body({}, status=500, headers={"x-should-retry": "false", "x-request-id": "req_1"})
    assert (failure.kind, failure.retryable, failure.request_id) == ("transient", False, "req_1")


@pytest.mark.parametrize(
    ("error", "stage", "kind"),
    [
        (asyncio.CancelledError(), Stage.READING, "stopped"),
        (TimeoutError(), Stage.SENT, "timed_out"),
        (IncompleteReply("cut"), Stage.READING, "broken_stream"),
        (json.JSONDecodeError("x", "", 0), Stage.READING, "broken_stream"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), Stage.READING, "broken_stream"),
        (TypeError("None"), Stage.READING, "broken_stream"),
        (ProviderError({"code": 429}), Stage.READING, "rate_limited"),
        (ValueError("NaN"), Stage.PREPARING, "bad_request"),
        (LookupError("no payload"), Stage.PREPARING, "bad_request"),
    ],
)
def test_exceptions(error: BaseException, stage: Stage, kind: str) -> None:
    """Anything a read raises is a failed attempt; what cannot even be sent stays so."""
    assert failure_of(error, stage).kind == kind


def test_a_message_is_safe_to_store_and_short() -> None:
    """Error texts are text from outside like any other."""
    message = failure_of_body({"message": "\ud800\0" + "x" * 10_000, "param": "p"}, status=400).message
    assert message.startswith("\ufffd\ufffdx")
    assert len(message) == 2_000


@pytest.mark.parametrize("code", ["4" * 5_000, "0404", "-404", "٤٠٤", 404.0, True, None])
def test_a_code_that_is_no_status_is_none(code: object) -> None:
    """It is text like any other: too long for a number, even."""
    assert failure_of_body({"error": {"code": code, "message": "no"}}).status is None
