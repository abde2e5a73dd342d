"""The page: a server of data and files, for a browser on this machine, or elsewhere with a token.

Rules
1. It only reads. There is no route that changes anything, and no method but GET.
2. Without a token it listens on the loopback only. With one, whoever comes must know it: once in the URL, then in a cookie that no script can read.
3. A request must name a host that we know (so no other page's name can be made to point here), and pages come with a policy that lets the browser
   load nothing from elsewhere and run no text as a script.
4. What a pipeline has in it leaves as JSON, and the page shows it as text.
5. Looking may wait for a disk or a network: it is done in threads, never on the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.errors import DefinitionError, MillstreamError
from millstream.extras import needed
from millstream.monitoring import browsing
from millstream.monitoring.addresses import bound, check_page_address
from millstream.monitoring.observer import EVERY, Observer
from millstream.network import is_loopback, parse_address, written

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_T = TypeVar("_T")

STATIC = Path(__file__).parent / "static"
COOKIE = "millstream-token"
_STARTS = 10.0  # seconds
_MOST_STREAMS = 32  # pages that are kept up to date at once
_MOST_CONNECTIONS = 128
_THREADS = 48
_PATIENCE = 10.0  # seconds
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageServer:
    """Serves the page of some pipelines until `stop`. observers: by name. tables: tells of a state service's tables."""

    def __init__(
        self, observers: Sequence[Observer], listen: str, token: str = "", tables: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        self._observers, self._token, self._tables = list(observers), token, tables
        host, port = check_page_address(listen, token)
        with needed("the page"):
            import uvicorn
        self._host = host
        self._names = frozenset((socket.gethostname(), socket.getfqdn()))
        self._streams = 0
        self._socket = bound(host, port)
        self.address = written(host, self._socket.getsockname()[1])
        config = uvicorn.Config(
            self._app(), http=_protocol(), ws="none", log_level="error", lifespan="off", access_log=False, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._ended = threading.Event()
        threading.Thread(target=self._keep_looking, name="millstream-page-looks", daemon=True).start()
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="millstream-page", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where a browser finds it; with the token, which it then keeps."""
        host, port = parse_address(self.address)
        seen = written("127.0.0.1" if host in ("0.0.0.0", "") else "::1" if host == "::" else host, port)
        return f"http://{seen}/" + (f"?token={_derived(self._token, 'address')}" if self._token else "")

    def stop(self) -> None:
        self._ended.set()
        self._server.should_exit = True
        self._thread.join(_STARTS)
        self._socket.close()

    def _keep_looking(self) -> None:
        """Looks at runs of this process while nobody else does: whoever comes later finds a past."""
        while not self._ended.wait(EVERY):
            for observer in self._observers:
                if not observer.is_remote:
                    observer.ask()

    # --- what is served

    def _app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Mount, Route
        from starlette.staticfiles import StaticFiles

        routes = [
            Route("/", self._index, methods=["GET"]),
            Route("/api/pipelines", self._pipelines, methods=["GET"]),
            Route("/api/pipelines/{number:int}", self._pipeline, methods=["GET"]),
            Route("/api/pipelines/{number:int}/events", self._events, methods=["GET"]),
            Route("/api/pipelines/{number:int}/state", self._state, methods=["GET"]),
            Route("/api/pipelines/{number:int}/view", self._view, methods=["GET"]),
            Route("/api/pipelines/{number:int}/rows", self._rows, methods=["GET"]),
            Route("/api/tables", self._service, methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        return _Guarded(Starlette(routes=routes), self)

    async def _index(self, request: Request) -> Response:
        from starlette.responses import FileResponse, RedirectResponse

        if self._token and "token" in request.query_params:
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, _derived(self._token, "cookie"), httponly=True, samesite="strict", path="/")
            return answer
        return FileResponse(STATIC / "index.html")

    async def _pipelines(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        views = await asyncio.gather(*[self._in_a_thread(observer.see) for observer in self._observers])
        found = [view.data for view in views]
        return JSONResponse(
            [
                {"number": at, "pipeline": one.pipeline, "checkpoint": one.checkpoint, "word": one.word, "epoch": one.epoch}
                for at, one in enumerate(found)
            ]
        )

    async def _pipeline(self, request: Request) -> Response:
        from starlette.responses import Response

        view = await self._in_a_thread(self._observer(request).see)
        return Response(view.json, media_type="application/json")

    async def _events(self, request: Request) -> Response:
        from starlette.responses import JSONResponse, StreamingResponse

        if self._streams >= _MOST_STREAMS:
            return JSONResponse({"error": f"{_MOST_STREAMS} pages are open already: close one"}, 503)
        return StreamingResponse(self._news(self._observer(request)), media_type="text/event-stream")

    async def _news(self, observer: Observer) -> AsyncIterator[bytes]:
        """What there is to see, whenever there is something new, at most once a second."""
        self._streams += 1
        try:
            told, silent = -1, 0
            while not self._server.should_exit:
                view = await self._in_a_thread(observer.see)
                if view.version != told:
                    told, silent = view.version, 0
                    yield b"data: " + view.json + b"\n\n"
                elif (silent := silent + 1) % 15 == 0:
                    yield b": still here\n\n"
                await asyncio.sleep(EVERY)
        finally:
            self._streams -= 1

    async def _state(self, request: Request) -> Response:
        query = request.query_params
        return await self._answer(partial(browsing.state, self._observer(request).log, query.get("computation", ""), query.get("key", "")))

    async def _view(self, request: Request) -> Response:
        query = request.query_params
        return await self._answer(partial(browsing.view, self._observer(request).log, query.get("name", ""), query.get("key", "")))

    async def _rows(self, request: Request) -> Response:
        return await self._answer(partial(browsing.published, self._observer(request).log, request.query_params.get("sink", "")))

    async def _service(self, request: Request) -> Response:
        return await self._answer(self._tables or dict)

    def _observer(self, request: Request) -> Observer:
        from starlette.exceptions import HTTPException

        number: int = request.path_params["number"]
        if number >= len(self._observers):
            raise HTTPException(404)
        return self._observers[number]

    async def _in_a_thread(self, ask: Callable[[], _T]) -> _T:
        """Rule 5. The threads are nobody else's, and do not keep the process from its end."""
        from anyio import to_thread

        return await to_thread.run_sync(ask, abandon_on_cancel=True, limiter=self._threads)

    @cached_property
    def _threads(self) -> Any:
        from anyio import CapacityLimiter

        return CapacityLimiter(_THREADS)

    async def _answer(self, ask: Callable[[], Any]) -> Response:
        from starlette.responses import JSONResponse

        try:
            return JSONResponse(await self._in_a_thread(ask))
        except (MillstreamError, OSError) as error:
            return JSONResponse({"error": str(error)}, 409)

    # --- who may ask

    def refuses(self, scope: Any) -> tuple[int, str] | None:
        """Why a request is not answered: a status and a word. Rules 1, 2 and 3."""
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this page only reads"
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"cookie", b"sec-fetch-site")}
        if not self._knows(headers.get(b"host", "")):
            return 421, "this page does not answer to that host name"
        if headers.get(b"sec-fetch-site") == "cross-site" and scope["path"] != "/":
            return 403, "another site asks"
        if not self._token:
            return None
        given = [part.partition("=")[2] for part in headers.get(b"cookie", "").split("; ") if part.startswith(f"{COOKIE}=")]
        if any(_is_same(one, _derived(self._token, "cookie")) for one in given):
            return None
        if scope["path"] == "/" and _is_same(_token_in(scope["query_string"]), _derived(self._token, "address")):
            return None
        return 401, "open the address that was printed at the start, with its token"

    def _knows(self, named: str) -> bool:
        try:
            host, _ = parse_address(named) if named.rpartition(":")[2].isdecimal() and not named.endswith("]") else (named.strip("[]"), 0)
        except DefinitionError:
            return False
        if is_loopback(host) or host == self._host or host in self._names or self._token:  # who knows the token is no stranger
            return True
        try:
            ipaddress.ip_address(host)  # an address cannot be made to point elsewhere
            return True
        except ValueError:
            return False


class _Guarded:
    """Answers only whom the server does not refuse, and puts the headers of rule 3 on everything."""

    def __init__(self, app: Any, server: PageServer) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        from starlette.responses import PlainTextResponse

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                extra = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items() if name.lower().encode() not in own]
                message = {**message, "headers": [*message["headers"], *extra]}
            await asyncio.wait_for(send(message), _PATIENCE)  # a reader that does not read

        refused = self._server.refuses(scope)
        app = self._app if refused is None else PlainTextResponse(refused[1] + "\n", refused[0])
        await app(scope, receive, sent)


def _derived(secret: str, use: str) -> str:
    """What the address and the cookie say: not the secret itself, which may be used elsewhere, and would stand in logs."""
    return hashlib.sha256(f"millstream page, {use}: {secret}".encode()).hexdigest()


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("latin-1", "replace"), wanted.encode())


def _protocol() -> type[Any]:
    """Connections, of which there may be so many, and which must ask for something soon."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Bounded(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > _MOST_CONNECTIONS:
                transport.close()
            else:
                self.loop.call_later(_PATIENCE, self._give_up)

        def _give_up(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

    return Bounded


def _token_in(query: bytes) -> str:
    from urllib.parse import parse_qs

    return next(iter(parse_qs(query.decode("latin-1")).get("token", [])), "")


def tables_of(registry: str, options: dict[str, Any] | None = None) -> Callable[[], dict[str, Any]]:
    """Tells of the tables of a state service: their partitions, and the nodes that have them."""
    with needed("the state service"):
        from millstream.service.registry import Registry
    from millstream.state.storage import open_storage

    known = Registry(open_storage(registry, options))

    def tell() -> dict[str, Any]:
        return dict(json.loads(json.dumps(_plain_registry(known.read()), default=str)))

    return tell


def _plain_registry(found: Any) -> dict[str, Any]:
    import msgspec

    return {
        "tables": sorted(found.tables),
        "nodes": {name: msgspec.to_builtins(node) for name, node in found.nodes.items()},
        "partitions": [msgspec.to_builtins(one) for one in list(found.partitions.values())[:1000]],
    }
