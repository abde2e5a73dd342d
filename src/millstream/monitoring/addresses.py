"""Where the page and metrics listen: what can be refused before anything is begun."""

from __future__ import annotations

import socket

from millstream.errors import DefinitionError
from millstream.extras import needed
from millstream.network import cannot_listen, is_loopback, parse_address


def check_page_address(listen: str, token: str) -> tuple[str, int]:
    """Host and port of a page. Without a token it is for this machine alone."""
    host, port = parse_address(listen)
    if not token and not is_loopback(host):
        raise DefinitionError(
            f"the page on {listen} would show everybody who can reach it what the pipeline keeps. Listen on 127.0.0.1, or set a token in MILLSTREAM_COOKIE"
        )
    return host, port


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; what stands in the way is told with what to do."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64)
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def check_addresses(page: str | None, metrics: str | None, token: str) -> None:
    """Before a run is begun: whether its page and its metrics could be served."""
    if page is not None:
        with needed("the page"):
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
        bound(*check_page_address(page, token)).close()
    if metrics is not None:
        with needed("metrics"):
            import prometheus_client  # noqa: F401
        bound(*parse_address(metrics)).close()
