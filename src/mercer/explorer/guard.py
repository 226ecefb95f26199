"""Who may talk to the server: only pages that it served itself, opened with its token.

Every request must name the server's own address as its host, which keeps out pages that make their own
name point to this machine.  It must not come from another origin, and it must bring the token, first in
the address and then in a cookie.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# The longest body of a request: the settings of a run with many columns.
MOST_BODY_BYTES = 1 << 20
READS = ("GET", "HEAD")


class Guard:
    """Refuses what is not allowed, and adds the headers that tell a browser what is."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app, self.token = app, token
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.cookie = f"mercer-explore-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        in_address = self._is_token(
            parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        )

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    own.setdefault(name, value)
                if in_address:
                    own["Set-Cookie"] = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            await send(message)

        refusal = self._refusal(scope["method"], headers, in_address)
        app = self.app if refusal is None else refusal
        await app(scope, receive, with_headers)

    def _refusal(self, method: str, headers: Headers, in_address: bool) -> PlainTextResponse | None:
        if headers.get("host", "") not in self.hosts:
            return PlainTextResponse("This server answers at 127.0.0.1 only.", 421)
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        own = origin is not None and origin.removeprefix("http://") in self.hosts
        if origin is not None and not own:
            return PlainTextResponse("Requests from other sites are refused.", 403)
        if method not in READS and not own:
            return PlainTextResponse("Requests that change something must come from the page.", 403)
        if site == "cross-site" and not in_address:
            return PlainTextResponse("Requests from other sites are refused.", 403)
        if not in_address and not self._is_token(self._cookie_of(headers)):
            text = "Open the address that was printed in the terminal; it has a token in it."
            return PlainTextResponse(text, 401)
        length = headers.get("content-length", "0")
        if method not in READS and not (length.isdecimal() and int(length) <= MOST_BODY_BYTES):
            return PlainTextResponse(f"A request can have at most {MOST_BODY_BYTES} bytes.", 413)
        return None

    def _cookie_of(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())
