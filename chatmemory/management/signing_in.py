"""To a chat's socket as a browser gets there: the page, the login form, the address in the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.client import HTTPException
from http.cookiejar import Cookie, CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener

TIMEOUT_SECONDS = 30.0
RETRY_SECONDS = 0.5
STARTING = (502, 503, 504)
"""What a proxy answers while its server starts."""
MAX_PAGE_BYTES = 4 * 1024 * 1024


class CannotSignIn(Exception):
    """No chat was found there, or the sign-in failed."""

    is_temporary = False
    """Whether the server may be starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a chat's socket is, and what opens it."""

    url: str
    cookies: Mapping[str, str]
    create: bool
    """The session is new: the socket makes it."""


def find_door(
    url: str,
    sign_in: Callable[[], tuple[str, str]],
    cookies: Mapping[str, str],
    *,
    wait_seconds: float = 0,
) -> Door:
    """Open the page of a chat, or of the list of chats for a new one; sign in where it asks.

    `sign_in` gives name and password; it is asked only if there is a form. A server that may be
    starting is asked again for `wait_seconds`. Raises CannotSignIn.
    """
    browser = _Browser(urlsplit(url).hostname or "", cookies)
    page = _first_page(browser, url, time.monotonic() + wait_seconds)
    if page.form is not None:
        for address in (page.url, page.form):
            if not _is_there(address, url):
                raise CannotSignIn(f"The login form is elsewhere, at {address}.")
        name, password = sign_in()
        page = browser.post(page, {"username": name, "password": password})
        if page.form is not None:
            raise CannotSignIn("The login page did not accept this user name and password.")
    if page.socket is None and page.new is not None:
        page = browser.get(page.new)
    if page.socket is None:
        raise CannotSignIn(f"There is no chat at {page.url}.")
    return Door(url=page.socket, cookies=browser.cookies, create=page.is_new)


def _first_page(browser: _Browser, url: str, until: float) -> _Page:
    while True:
        try:
            return browser.get(url)
        except CannotSignIn as error:
            if not error.is_temporary or time.monotonic() + RETRY_SECONDS > until:
                raise
            time.sleep(RETRY_SECONDS)


def _is_there(address: str, url: str) -> bool:
    """Whether an address is of the same host and port, and as safe from being read on the way."""
    there, here = urlsplit(address), urlsplit(url)
    return there.netloc == here.netloc and there.scheme in (here.scheme, "https")


@dataclass(slots=True)
class _Page:
    url: str
    form: str | None = None
    """Where the login form goes."""
    hidden: dict[str, str] = field(default_factory=dict)
    socket: str | None = None
    is_new: bool = False
    new: str | None = None
    """The address for a new chat."""


class _Browser:
    def __init__(self, host: str, cookies: Mapping[str, str]) -> None:
        self._jar = CookieJar()
        for name, value in cookies.items():
            self._jar.set_cookie(_cookie(host, name, value))
        self._opener = build_opener(HTTPCookieProcessor(self._jar))

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.name: cookie.value or "" for cookie in self._jar}

    def get(self, url: str) -> _Page:
        return self._open(Request(url))  # noqa: S310  # `_open` looks at the scheme

    def post(self, page: _Page, fields: Mapping[str, str]) -> _Page:
        data = urlencode({**page.hidden, **fields}).encode()
        return self._open(Request(page.form or page.url, data, {"Referer": page.url}))  # noqa: S310

    def _open(self, request: Request) -> _Page:
        if request.type not in ("http", "https"):
            raise CannotSignIn(f"{request.full_url} is no address of a page.")
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                reader = _Reader(answer.url)
                reader.feed(answer.read(MAX_PAGE_BYTES).decode(errors="replace"))
        except HTTPError as error:
            error.close()
            failed = CannotSignIn(f"{error.url}: {error.code} {error.reason}")
            failed.is_temporary = error.code in STARTING
            raise failed from error
        except (OSError, HTTPException) as error:  # of those, urllib wraps only some
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            failed = CannotSignIn(f"{request.full_url}: {reason}")
            is_away = isinstance(getattr(error, "reason", error), ConnectionError | TimeoutError)
            failed.is_temporary = is_away
            raise failed from error
        return reader.page


def _cookie(host: str, name: str, value: str) -> Cookie:
    """A cookie for this host alone."""
    return Cookie(
        version=0,
        name=name,
        value=value,
        port=None,
        port_specified=False,
        domain=host if "." in host else f"{host}.local",  # as the jar calls such hosts
        domain_specified=False,
        domain_initial_dot=False,
        path="/",
        path_specified=True,
        secure=False,
        expires=None,
        discard=True,
        comment=None,
        comment_url=None,
        rest={},
    )


class _Reader(HTMLParser):
    """Finds a login form and the socket of a chat in a page."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.page = _Page(url)
        self._action = url
        self._hidden: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        match tag, given:
            case "form", _:
                self._action = urljoin(self.page.url, given.get("action", ""))
                self._hidden = {}
            case "input", {"type": "hidden", "name": name}:
                self._hidden[name] = given.get("value", "")
            case "input", {"type": "password"}:
                self.page.form, self.page.hidden = self._action, self._hidden
            case "chat-memory", {"url": url}:
                self.page.socket = urljoin(self.page.url, url)
                self.page.is_new = "create" in given
            case "a", {"href": href} if href.endswith("/~new/"):
                self.page.new = urljoin(self.page.url, href)
