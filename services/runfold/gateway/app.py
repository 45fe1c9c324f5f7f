"""The ASGI application: the table of routes, each with its handler, behind tokens; every refusal is a problem."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as ServedRoute

from runfold.gateway.gateway import Gateway
from runfold.gateway.handlers import HANDLERS, Handler, run_id_of
from runfold.gateway.problems import MEDIA, Refused
from runfold.gateway.routes import DISPATCH, OPEN, ROUTES, Route
from runfold.gateway.tokens import bearer, dispatch_token, is_same

log = logging.getLogger("runfold.gateway")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
CHALLENGE = {"WWW-Authenticate": "Bearer"}
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class App:
    """Routes by the path as it came, so that an id may hold an escaped slash."""

    def __init__(self, gateway: Gateway) -> None:
        served = [
            ServedRoute(route.path, _endpoint(gateway, route, HANDLERS[route.name]), methods=[route.method])
            for route in ROUTES
        ]
        handlers: dict[Any, Any] = {Refused: _refused, HTTPException: _unserved, Exception: _broken}
        self._app = Starlette(routes=served, exception_handlers=handlers)
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("latin-1")
            await self._app(scope, receive, send)


def _endpoint(gateway: Gateway, route: Route, handle: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if request.method != route.method:  # HEAD, which would be served like GET
            raise HTTPException(405, headers={"Allow": route.method})
        _authorise(gateway, route, request)
        return await handle(gateway, request)

    return endpoint


def _authorise(gateway: Gateway, route: Route, request: Request) -> None:
    """Raises Refused unless the request may be served."""
    if route.auth == OPEN:
        return
    given = bearer(request.headers.get("authorization"))
    if route.auth == DISPATCH:
        if not gateway.secret:
            raise Refused(503, "this gateway knows no dispatch tokens: set RUNFOLD_DISPATCH_SECRET")
        wanted = dispatch_token(gateway.secret, run_id_of(request), unquote(request.path_params["dispatch"]))
        if not is_same(given, wanted):
            raise Refused(401, "the token is not that of this dispatch", headers=CHALLENGE)
    elif gateway.token:
        if not is_same(given, gateway.token):
            raise Refused(401, "send the header Authorization: Bearer, with the gateway's token", headers=CHALLENGE)
    elif _host_of(request) not in LOOPBACK_NAMES:  # a page of another site, by a name that leads here
        raise Refused(401, "without RUNFOLD_GATEWAY_TOKEN it is served under localhost only", headers=CHALLENGE)


def _host_of(request: Request) -> str:
    host = request.headers.get("host", "")
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    text = error.problem.model_dump_json(exclude_none=True)
    return Response(text, error.problem.status, media_type=MEDIA, headers=error.headers)


async def _unserved(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    said = {404: "there is no such path; see /openapi.json", 405: f"use {headers.get('Allow', 'another method')}"}
    detail = said.get(status, HTTPStatus(status).phrase)
    return await _refused(request, Refused(status, detail, headers=headers))


async def _broken(request: Request, error: Exception) -> Response:
    log.error("%s %s: %r", request.method, request.url.path, error)
    return await _refused(request, Refused(500, "this is a fault of the gateway: its log says more"))
