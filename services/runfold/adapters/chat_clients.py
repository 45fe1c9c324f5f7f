"""Lends out clients of the `openai` package, each with a few connections.

A pool looks at every connection it holds at the begin and at the end of each request: with 512 streams in one pool, a
call took twice the processor time of one among 32 (measured). Many small pools cost the same as one small one. They
share the TLS context, which takes a tenth of a second to make.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

CALLS_PER_CLIENT = 32


@dataclass(slots=True)
class _Client:
    client: AsyncOpenAI
    calls: int = 0


class Clients:
    """All clients of one provider. Used on one event loop only."""

    def __init__(self, *, base_url: str, api_key: str, headers: Mapping[str, str]) -> None:
        self._base_url = base_url
        self._api_key = api_key or "none"  # the package insists on one; local servers do not look
        self._headers = dict(headers)
        self._tls = httpx2.create_ssl_context()
        self._clients: list[_Client] = []

    @contextmanager
    def lent(self) -> Iterator[AsyncOpenAI]:
        """A client with room for one more call. The first ones are preferred: their connections are warm."""
        lent = next((client for client in self._clients if client.calls < CALLS_PER_CLIENT), None)
        if lent is None:
            lent = _Client(self._made())
            self._clients.append(lent)
        lent.calls += 1
        try:
            yield lent.client
        finally:
            lent.calls -= 1

    async def close(self) -> None:
        for client in self._clients:
            await client.client.close()

    def _made(self) -> AsyncOpenAI:
        return AsyncOpenAI(
            base_url=self._base_url,
            api_key=self._api_key,
            max_retries=0,  # a retry is a decision, recorded in the log
            default_headers=self._headers,
            http_client=DefaultAsyncHttpxClient(verify=self._tls),
        )
