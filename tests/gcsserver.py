"""A stand-in for Google Cloud Storage on a free port of this host: the few requests of its XML interface that obstore makes, as Google describes them.

It is our own reading of that description: it shows that Millstream and obstore say what they mean, and not that Google understands it. The emulator that
there is (fake-gcs-server) has no such interface.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PAGE = 1000
_DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


class GcsServer:
    """Started when made; `options` and `url` open storages on it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _name(self) -> str:
                return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

            def do_PUT(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with server.lock:
                    if self.headers.get("x-goog-if-generation-match") == "0" and self._name() in server.objects:
                        self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                        return
                    source = self.headers.get("x-goog-copy-source")
                    if source is not None:
                        found = server.objects.get(unquote(source).lstrip("/").removeprefix("bucket/"))
                        if found is None:
                            self._answer(404)
                            return
                        data = found
                    server.objects[self._name()] = data
                self._answer(200, ETag='"x"', x_goog_generation="1")

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path.rstrip("/") == "/bucket":
                    self._list({name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()})
                    return
                with server.lock:
                    found = server.objects.get(self._name())
                if found is None:
                    self._answer(404)
                    return
                asked = self.headers.get("Range")
                if asked is None:
                    self._answer(200, found, ETag='"x"', Last_Modified=_DATE)
                    return
                first, last = asked.removeprefix("bytes=").split("-")
                start, stop = int(first), min(len(found), int(last) + 1)
                headers = {"Content_Range": f"bytes {start}-{stop - 1}/{len(found)}"}
                self._answer(206, found[start:stop], ETag='"x"', Last_Modified=_DATE, **headers)

            do_HEAD = do_GET

            def do_DELETE(self) -> None:
                with server.lock:
                    self._answer(404 if server.objects.pop(self._name(), None) is None else 204)

            def _list(self, asked: dict[str, str]) -> None:
                prefix, delimiter, after = asked.get("prefix", ""), asked.get("delimiter", ""), asked.get("continuation-token", "")
                with server.lock:
                    names = sorted(name for name in server.objects if name.startswith(prefix))
                    sizes = {name: len(server.objects[name]) for name in names}
                folders = {
                    name[: name.index(delimiter, len(prefix)) + 1] for name in names if delimiter and delimiter in name[len(prefix) :]
                }
                keys = [name for name in names if not delimiter or delimiter not in name[len(prefix) :]]
                page = [name for name in sorted([*keys, *folders]) if name > after]
                more, page = len(page) > _PAGE, page[:_PAGE]
                body = "<?xml version='1.0'?><ListBucketResult>"
                for name in page:
                    if name in folders:
                        body += f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                    else:
                        size = sizes[name]
                        body += f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>x</ETag>"
                        body += "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
                if more:
                    body += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
                self._answer(200, f"{body}</ListBucketResult>".encode(), Content_Type="application/xml")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        key = {"gcs_base_url": f"http://127.0.0.1:{self._server.server_port}", "disable_oauth": True}
        self.options = {
            "service_account_key": json.dumps({**key, "client_email": "", "private_key": "", "private_key_id": ""}),
            "client_options": {"allow_http": True},
        }
        self._roots = 0

    def url(self) -> str:
        """A prefix that nobody has used."""
        self._roots += 1
        return f"gs://bucket/deep/root{self._roots}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
