"""Chat over REST with tokens of both kinds, and revoke them. Runs as a separate module."""

from __future__ import annotations

from typing import Any

import django

django.setup()

from django.conf import settings  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402
from rest_framework.authtoken.models import Token  # noqa: E402
from rest_framework_simplejwt.tokens import AccessToken  # noqa: E402

from chatmemory import services  # noqa: E402
from chatmemory.api.tokens import valid_logins  # noqa: E402
from chatmemory.errors import Unauthenticated  # noqa: E402

call_command("migrate", verbosity=0)
ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
browser = Client(enforce_csrf_checks=True)
JSON = "application/json"
ORIGIN = {"origin": "https://app.example"}


def call(method: str, path: str, login: str, body: object = None, **more: Any) -> Any:
    headers = {"authorization": login, **more}
    return getattr(browser, method)(f"/api/{path}", body, content_type=JSON, headers=headers)


def status(*args: Any) -> int:
    code: int = call(*args).status_code
    return code


def chat_as(login: str) -> None:
    """Create a session, send a message, and read it, without a cookie or CSRF token."""
    key = call("post", "sessions/", login, {}).json()["key"]
    sent = call("post", f"sessions/{key}/messages/", login, {"client_id": "c1", "text": "hi"})
    assert sent.status_code == 202, sent.content
    assert status("patch", f"sessions/{key}/", login, {"title": "x"}) == 200
    listed = browser.get("/api/sessions/", headers={"authorization": login}).json()["sessions"]
    assert [session["key"] for session in listed] == [key]


def ticket_of(login: str) -> str:
    ticket: str = call("post", "tickets/", login, {}).json()["ticket"]
    return ticket


def is_refused(ticket: str) -> bool:
    try:
        services.use_ticket(ticket=ticket)
    except Unauthenticated:
        return True
    return False


token = Token.objects.create(user=ann)
by_token, by_jwt = f"Token {token.key}", f"Bearer {AccessToken.for_user(bob)}"
chat_as(by_token)
chat_as(by_jwt)

# A ticket depends on the credential that requested it.
assert services.use_ticket(ticket=ticket_of(by_token)).credential == token.key
unused = ticket_of(by_token)
token.delete()
assert is_refused(unused)
without_credential = services.Login.of(ann)
by_other_token = services.Login.of(ann, credential="another")
assert valid_logins([without_credential, by_other_token]) == [without_credential]

# Neither a revoked token nor the token of a disabled user is a login.
assert status("post", "sessions/", by_token, {}) == 401
User.objects.filter(pk=bob.pk).update(is_active=False)
refused = call("post", "sessions/", by_jwt, {})
assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
assert refused["WWW-Authenticate"] == 'Token, Bearer realm="api", Session'

# A page of another origin may send the token, but no cookie.
asked = {
    "access-control-request-method": "PATCH",
    "access-control-request-headers": "authorization, if-none-match",
}
preflight = browser.options("/api/sessions/", headers={**ORIGIN, **asked})
assert preflight["Access-Control-Allow-Origin"] == ORIGIN["origin"]
assert {"authorization", "if-none-match"} <= {
    *preflight["Access-Control-Allow-Headers"].split(", ")
}
assert "PATCH" in preflight["Access-Control-Allow-Methods"]
assert "Access-Control-Allow-Credentials" not in preflight
shown = call("get", "sessions/", by_jwt, **ORIGIN)
assert "Access-Control-Allow-Origin" in shown
assert shown["Access-Control-Expose-Headers"].split(", ") == list(
    getattr(settings, "CORS_EXPOSE_HEADERS")  # noqa: B009  # not a setting of Django
)
foreign = browser.get("/api/sessions/", headers={"origin": "https://other.example"})
assert "Access-Control-Allow-Origin" not in foreign
print("done")  # noqa: T201  # for the test that runs this
