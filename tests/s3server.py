"""A real S3 server on a free port of this host: moto, with its requests one after the other.

moto checks If-None-Match and stores in two steps; the lock makes the two one, as S3 does.
"""

from __future__ import annotations

import threading
import urllib.request
from typing import Any


class S3Server:
    """Started when made; `options` and `url` open storages on it."""

    def __init__(self) -> None:
        import logging

        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        app = DomainDispatcherApplication(create_backend_app)
        lock = threading.Lock()

        def one_at_a_time(environ: Any, start_response: Any) -> list[bytes]:
            with lock:
                return [b"".join(app(environ, start_response))]

        self._server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.port = self._server.server_port
        self.options = {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "access_key_id": "x",
            "secret_access_key": "x",
            "region": "us-east-1",
            "client_options": {"allow_http": True},
        }
        self._roots = 0
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(urllib.request.Request(f"http://127.0.0.1:{self.port}/bucket", method="PUT")).close()

    def url(self) -> str:
        """A prefix that nobody has used."""
        self._roots += 1
        return f"s3://bucket/deep/root{self._roots}"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()
