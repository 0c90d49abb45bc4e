"""Operators who visit the admin, and the sessions that they find."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.auth.models import Permission
from django.test import Client

from chatmemory import services
from chatmemory.models import Session
from chatmemory.services import SERVER
from tests.factories import BY, make_messages, make_session, make_user

LIST = "/admin/chatmemory/session/"
JOBS = "/admin/chatmemory/job/"
ACTING = (
    "view_session",
    "trim_history",
    "clear_history",
    "purge_history",
    "restore_history",
    "archive_session",
    "hold_session",
    "tag_session",
    "stop_turn",
    "export_history",
    "view_audit",
)
"""The permissions for all actions."""


def operator(*rights: str, name: str = "olga") -> Client:
    """Return a client with a signed-in operator who has only these permissions."""
    user = make_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(user)
    return client


def talk_of(owner: Any, *texts: str, key: str = "talk", **columns: Any) -> Session:
    """Return a session of this user, or of the server, with these messages."""
    session = make_session(key, owner=owner, **columns)
    scope = services.user_scope(owner) if owner else SERVER
    messages = make_messages(*(texts or ("hi", "hello", "where?", "here")))
    services.append_messages(session_key=key, messages=messages, by=BY, scope=scope)
    session.refresh_from_db()
    return session


def action_url(name: str, *sessions: Session) -> str:
    """Return the URL of the page that confirms an action on these sessions."""
    return f"{LIST}action/{name}/?{'&'.join(f'session={session.pk}' for session in sessions)}"


def job_url(job: Any, page: str = "") -> str:
    return f"{LIST}jobs/{job.pk}/{page}"


def confirm(client: Client, address: str, **given: Any) -> Any:
    """Confirm an action with the number that its page shows; return the answer."""
    return client.post(address, {**confirmation(client, address, **given)})


def confirmation(client: Client, address: str, **given: Any) -> dict[str, Any]:
    """Return what the form of a confirmation sends, without the time of its preview."""
    shown = client.post(address, {**given, "preview": "1"})
    return {"reason": "spam", "count": shown.context["summary"].count, **given}


def shown(answer: Any) -> str:
    """Return the text of a page without its tags."""
    assert answer.status_code == 200
    page = re.sub(r"</?bdi>", "", answer.content.decode())
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page[page.index('id="content"') :]))


def notices(answer: Any) -> list[str]:
    """Return the notices on a page, without tags."""
    assert answer.status_code == 200
    texts = (re.sub(r"<[^>]*>", "", str(message)) for message in answer.context["messages"])
    return [" ".join(text.split()) for text in texts]
