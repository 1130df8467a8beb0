"""A small web server for one person on this machine.

Guarantee: it listens on the loopback interface only. Other users of the machine share that, so
every address begins with a random token, without which nothing is answered. They can also read the
arguments of each other's processes, so a browser is started with a key that opens once and leads
on to the address. Another web site that
is open in the same browser gets nothing: requests must name this server as their host, which stops
names that are pointed at this machine, and requests that change or compute something must be JSON
from a page of this server. Nothing is stored by the browser, shown in a frame, or passed on as a
referrer. A question or a page that fails, however it fails, is answered with one line.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedspend.errors import FedspendError, InvalidInput

HOST = "127.0.0.1"
MOST_BYTES = 32 * 2**20  # of one request: a plan of some 100,000 clients
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Ask = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Site:
    """What is served: pages by name ("" is the first), and functions from JSON to JSON."""

    pages: Mapping[str, Callable[[], str]]
    asks: Mapping[str, Ask]


@dataclass(frozen=True)
class Served:
    """A server that is running. `door` leads to `address`, for the first who comes."""

    address: str
    door: str
    server: ThreadingHTTPServer

    def forever(self) -> None:
        """Serve until somebody interrupts."""
        threading.Event().wait()


@contextlib.contextmanager
def serving(site: Site, port: int = 0) -> Iterator[Served]:
    """The site under a new token; `port` 0 takes a free one."""
    token, once = secrets.token_urlsafe(24), _Once()
    door = once.key
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Handler, site, token, once))
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"cannot listen on port {port}: {error}; choose another with --port, or leave it out"
        ) from None
    server.daemon_threads = True
    # closing waits for the next look of the loop
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        root = f"http://{HOST}:{server.server_address[1]}"
        yield Served(f"{root}/{token}/", f"{root}/{door}/", server)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Once:
    """A key that opens once."""

    def __init__(self) -> None:
        self.key, self._lock = secrets.token_urlsafe(24), threading.Lock()

    def opens(self, given: str) -> bool:
        with self._lock:
            good = self.key != "" and hmac.compare_digest(given.encode(), self.key.encode())
            if good:
                self.key = ""
            return good


def open_browser(served: Served) -> bool:
    """Whether a browser could be opened."""
    try:
        return webbrowser.open(served.door)
    except webbrowser.Error:
        return False


def _tried(make: Callable[[], str]) -> tuple[int, str]:
    """What `make` gives, or one line that says why there is nothing: whatever fails, the browser
    gets an answer, and the terminal no traceback.
    """
    try:
        return 200, make()
    except FedspendError as error:
        return 422, _line(error)
    except Exception as error:  # of any kind: this is the last place that can say so
        said = f"{type(error).__name__}: {_line(error)}" if str(error) else type(error).__name__
        return 500, f"this failed inside fedspend, which is a mistake of ours ({said})"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _as_error(line: str) -> str:
    return json.dumps({"error": line})


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests for one site: only under its token, once also under the key."""

    server_version, sys_version = "fedspend", ""
    timeout = 30  # a connection that says nothing is closed

    def __init__(self, site: Site, token: str, once: _Once, *request: Any) -> None:
        self._site, self._token, self._once = site, token, once
        super().__init__(*request)  # answers the request

    def do_GET(self) -> None:
        asked = self._asked()
        if asked is not None and self._once.opens(asked[0]):
            self._send(303, "text/plain; charset=utf-8", "", Location=f"/{self._token}/")
            return
        name = self._name()
        if name is None or name not in self._site.pages:
            self._refuse(404)
            return
        code, text = _tried(self._site.pages[name])
        kind = "text/html" if code == 200 else "text/plain"
        self._send(code, f"{kind}; charset=utf-8", text)

    def do_POST(self) -> None:
        name = self._name()
        if name is None or name not in self._site.asks:
            self._refuse(404)
            return
        if not self._from_own_page():
            self._refuse(403)
            return
        self._answer(self._site.asks[name])

    def _answer(self, ask: Ask) -> None:
        code, text = _tried(lambda: json.dumps(ask(self._body()), allow_nan=False))
        self._send(code, "application/json", text if code == 200 else _as_error(text))

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or not int(length) <= MOST_BYTES:
            self.close_connection = True
            raise InvalidInput(f"a request may have up to {MOST_BYTES:,} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise InvalidInput("the request is not JSON") from None
        if not isinstance(body, dict):
            raise InvalidInput("the request must be a JSON object")
        return body

    def _asked(self) -> tuple[str, str] | None:
        """The token that is given, and what is asked for; None under another host's name."""
        port = self.server.server_address[1]  # type: ignore[index]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return None
        _, _, rest = self.path.partition("/")
        given, _, name = rest.partition("?")[0].partition("/")
        return given, name

    def _name(self) -> str | None:
        """What is asked for, or None without the token or under another host's name."""
        given, name = self._asked() or ("", "")
        return name if hmac.compare_digest(given.encode(), self._token.encode()) else None

    def _from_own_page(self) -> bool:
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        return (
            origin in (None, f"http://{self.headers['Host']}")
            and site in (None, "same-origin")
            and self.headers.get_content_type() == "application/json"
        )

    def _refuse(self, code: int) -> None:
        self._send(code, "text/plain; charset=utf-8", "not here\n")

    def _send(self, code: int, kind: str, text: str, **more: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(code)
        for name, value in (_HEADERS | more).items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        with contextlib.suppress(ConnectionError):  # the page has gone on to something else
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Addresses hold the token, and stay out of every log."""
