"""What the test servers share: an HTTP server on a free port of loopback, for the length of a `with` block.

`Loopback` is the server, `JsonHandler` reads and answers the requests of those that are asked in JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Loopback:
    """Serves one kind of handler."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = False  # joined at the end, so that nothing of one test lives on into the next
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class JsonHandler(BaseHTTPRequestHandler):
    """Handles one request a connection, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """See `BaseHTTPRequestHandler`."""

    def asked(self) -> dict[str, Any]:
        """The request's body."""
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        return body

    def answer(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send an answer, with `headers` beside or in place of the usual ones; the connection ends with it."""
        self.close_connection = True
        self.send_response(code)
        # that the connection closes is said, or a client sends its next request into the closing one
        fixed = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
