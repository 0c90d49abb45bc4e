"""Calls of the REST API: login, repeats after a lost connection, problems, conditional reads."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from chatmemory.client.events import ClientError, Frame
from chatmemory.client.pauses import max_pause

TIMEOUT_SECONDS = 30.0
MAX_REPEATS = 3
"""How often a call is repeated after a lost connection."""
MAX_KNOWN = 32
"""Number of responses that are kept for conditional reads."""
LOST = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError, httpx.ProxyError)
"""The connection failed or was cut; the server may have executed the call."""
RETRY_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses of proxies after which the unchanged call may succeed."""
CSRF_COOKIE, CSRF_HEADER = "csrftoken", "X-CSRFToken"
VISITOR = ("__Host-chatmemory", "chatmemory-visitor")
"""The cookies of a visitor: over HTTPS, and on a development server."""


class ApiError(ClientError):
    """The REST API refused a call, or no response arrived; `code` is one of docs/reference/api.md.

    Two codes are the client's own: `disconnected`, with status 0, and `bad_response` for a response
    that is not the API's, such as a proxy's.
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(problem["code"])
        self.message = str(problem.get("detail") or "refused")
        self.retry = bool(problem.get("retry"))
        """Whether the unchanged call may succeed later."""
        self.retry_after = float(problem.get("retry_after") or 0)
        """Seconds to wait before the retry; 0 if the server states none."""
        self.field: str | None = problem.get("field")
        self.limit: int | None = problem.get("limit")
        self.turn: str | None = problem.get("turn")
        """The turn that caused the refusal."""
        self.ref: str | None = problem.get("ref")
        """The reference of an internal error in the server's log."""
        self.client_id: str | None = None
        """Of a message; send it again with the same one."""
        self.attempts = 1
        """How often the call was sent."""
        super().__init__(f"{self.code}: {self.message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, which may be sent several times."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Frame | None = None
    can_repeat: bool = True
    """Whether a second execution changes nothing and has the same answer."""
    timeout_seconds: float | None = 0.0
    """Time to wait for the response, in addition to the client's; None for no limit."""
    headers: Mapping[str, str] = field(default_factory=dict)
    silence_seconds: float | None = None
    """Of a stream: the time without a byte after which it counts as lost."""


class Http:
    """Sends calls with the login of one user."""

    def __init__(
        self,
        url: str,
        *,
        cookies: Mapping[str, str],
        headers: Mapping[str, str],
        timeout_seconds: float,
        options: Mapping[str, Any],
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a REST API")
        self._url = f"{url.rstrip('/')}/"
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._cookies = {**cookies}
        self._headers = httpx.Headers(_cookie_headers(cookies, self._origin))
        self._headers.update(headers)
        self._timeout_seconds = timeout_seconds
        self._client = httpx.AsyncClient(timeout=timeout_seconds, **options)
        self._known: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        """ETag and body of the last responses, by URL."""

    async def close(self) -> None:
        await self._client.aclose()

    def add_cookies(self, cookies: Mapping[str, str]) -> None:
        """Send these cookies too, and the CSRF token that Django needs with them."""
        token = {CSRF_COOKIE: self._cookies.get(CSRF_COOKIE) or secrets.token_hex(16)}
        self._cookies |= {**token, **cookies}
        self._headers.update(_cookie_headers(self._cookies, self._origin))

    async def request(self, call: Call) -> Frame:
        """Send a call until a response arrives; return its JSON. Raises ApiError."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return _fields_of(await self._send_call(call))
            except ApiError as error:
                error.attempts = attempt
                raise
            except LOST as error:
                if attempt > MAX_REPEATS or not call.can_repeat:
                    lost = _disconnected(error)
                    lost.attempts = attempt
                    raise lost from error
            # Random, so that the clients of a restarted server do not return all together.
            await asyncio.sleep(random.uniform(0, max_pause(attempt - 1)))  # noqa: S311  # no secret

    async def stream(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Yield the response of a call, which is sent once. Raises ApiError."""
        try:
            async with self._client.stream(**self._call_arguments(call)) as response:
                if response.is_error:
                    await response.aread()
                    _fields_of(response)
                async for piece in response.aiter_bytes():
                    yield piece
        except LOST as error:
            raise _disconnected(error) from error

    async def probe(self, path: str, headers: Mapping[str, str]) -> Frame:
        """Read what is public, also if its status is 503. Raises ApiError."""
        try:
            # Without the login: the API would take the user's token for another secret.
            response = await self._client.get(self._url + path, headers=dict(headers), auth=None)
        except LOST as error:
            raise _disconnected(error) from error
        fields = _json_of(response)
        return fields if "status" in fields and "code" not in fields else _fields_of(response)

    async def _send_call(self, call: Call) -> httpx.Response:
        arguments = self._call_arguments(call)
        address = str(httpx.URL(arguments["url"], params=arguments["params"]))
        known = self._known.get(address) if call.method == "GET" else None
        if known is not None:
            arguments["headers"]["If-None-Match"] = known[0]
        response = await self._client.request(**arguments)
        visitor = {name: response.cookies[name] for name in VISITOR if name in response.cookies}
        if visitor:
            self.add_cookies(visitor)
        if known is not None and response.status_code == HTTPStatus.NOT_MODIFIED:
            self._known.move_to_end(address)
            return httpx.Response(HTTPStatus.OK, content=known[1])
        self._keep(address, response)
        return response

    def _keep(self, address: str, response: httpx.Response) -> None:
        self._known.pop(address, None)
        if response.status_code == HTTPStatus.OK and "ETag" in response.headers:
            self._known[address] = (response.headers["ETag"], response.content)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _call_arguments(self, call: Call) -> dict[str, Any]:
        headers = {**self._headers, "Accept": "application/json", **call.headers}
        content = None
        if call.body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(call.body).encode()
        more = call.timeout_seconds
        read = None if more is None else self._timeout_seconds + more
        if call.silence_seconds is not None:
            read = call.silence_seconds
        return {
            "method": call.method,
            "url": self._url + call.path,
            "params": {name: value for name, value in call.query.items() if value is not None},
            "content": content,
            "headers": headers,
            "timeout": httpx.Timeout(self._timeout_seconds, read=read),
        }


def path_of(*parts: str | int) -> str:
    """Return the path with these names, percent-encoded.

    Raises ApiError for a name that a URL cannot contain.
    """
    names = [str(part) for part in parts]
    # Servers decode "%2F", and RFC 3986, 5.2.4 removes dots: it would be another resource's path.
    if any(name in ("", ".", "..") or "/" in name for name in names):
        detail = "No resource has this URL."
        raise ApiError(HTTPStatus.NOT_FOUND, {"code": "not_found", "detail": detail})
    return "".join(f"{quote(name, safe='')}/" for name in names)


def _cookie_headers(cookies: Mapping[str, str], origin: str) -> dict[str, str]:
    """Return the headers with which Django accepts these cookies, also for writes over HTTPS."""
    if not cookies:
        return {}
    # The server compares the cookie with the header; each value that has its form is valid.
    token = cookies.get(CSRF_COOKIE) or secrets.token_hex(16)
    sent = {**cookies, CSRF_COOKIE: token}
    return {
        "Cookie": "; ".join(f"{name}={value}" for name, value in sent.items()),
        CSRF_HEADER: token,
        "Origin": origin,
    }


def _disconnected(error: Exception) -> ApiError:
    detail = str(error) or type(error).__name__
    return ApiError(0, {"code": "disconnected", "detail": detail, "retry": True})


def _json_of(response: httpx.Response) -> Frame:
    """Return the object in a response; empty if it has none."""
    try:
        fields = response.json()
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _fields_of(response: httpx.Response) -> Frame:
    """Return the object in a response. Raises ApiError if it is an error."""
    fields = _json_of(response)
    if response.is_success and fields:
        return fields
    status = response.status_code
    if not response.is_error or "code" not in fields:
        fields = {
            "code": "bad_response",
            "detail": f"The response is not the API's: {status} {response.reason_phrase}",
            "retry": status in RETRY_STATUSES,
        }
    seconds = response.headers.get("Retry-After", "")
    after = {"retry_after": float(seconds)} if seconds.isdecimal() else {}
    raise ApiError(status, {**after, **fields})
