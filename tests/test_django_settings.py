"""Hosts whose global settings of Django are not those of the demo."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.template import engines
from django.test import override_settings
from django.utils import timezone

from chatmemory import services
from chatmemory.models import AuditEntry, Message, Session, database_now
from tests.admin.scene import FIGURES, MASKED, all_pages, make_scene
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.pages.test_chats import PAGES
from tests.pooling import reconnect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

HOSTS: dict[str, dict[str, Any]] = {
    "naive times": {"USE_TZ": False, "TIME_ZONE": "America/New_York"},
    "German numbers": {
        "USE_THOUSAND_SEPARATOR": True,
        "LANGUAGE_CODE": "de",
        "TIME_ZONE": "Pacific/Kiritimati",
    },
    "no translation": {"USE_I18N": False},
}


@pytest.fixture
def host(request):
    """Override settings as this host does."""
    with override_settings(**HOSTS[request.param]):
        reconnect()
        yield
    reconnect()


def ours(**changed: object) -> override_settings:
    """Override settings of ours within those of the host: `settings` would undo them later."""
    return override_settings(CHATMEMORY={**settings.CHATMEMORY, **changed})


naive = pytest.mark.parametrize("host", ["naive times"], indirect=True)


GROUPED = re.compile(
    r"""(?:href|action|src|value|id|for|datetime|data-[a-z-]+)="[^"]*\b\d{1,3}[.,]\d{3}\b"""
)
"""A number with separators in an attribute that programs read."""


def skip_to_large_numbers() -> None:
    """Let the next primary keys have four digits, where they follow the highest one."""
    user = make_user("first", pk=1_233)
    session = make_session("first", pk=1_234, owner=user)
    services.append_messages(
        **{**TALK, "session_key": "first", "scope": session.scope}, messages=make_messages("a")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    ["naive times", *(pytest.param(host, marks=pytest.mark.long) for host in list(HOSTS)[1:])],
    indirect=True,
)
def test_each_page_works_with_other_settings_of_django(host, client):
    skip_to_large_numbers()
    scene = make_scene()
    services.append_messages(
        session_key=scene.talk.key,
        by=BY,
        scope=scene.talk.scope,
        messages=make_messages(*"a" * 1_000),
    )
    key = scene.talk.key
    of_person = [*(f"/chat/{path.replace('talk', key)}" for path in (*PAGES, f"{key}/"))]
    of_person += [f"/api/{path}" for path in ("sessions/", f"sessions/{key}/", "health/")]
    of_person += [f"/api/sessions/{key}/{path}/" for path in ("messages", "turns")]
    files = ("auditentry/csv/", f"{FIGURES}/turns.csv", "session/{talk}/next/")
    of_operator = [scene.address(path) for path in (*(page.path for page in all_pages()), *files)]
    masked = [scene.address(page.path) for page in MASKED]
    for user, mode, addresses in (
        (scene.ann, "normal", of_person),
        (scene.root, "normal", of_operator),
        (scene.root, "masked", masked),
    ):
        client.force_login(user)
        with ours(TRANSCRIPTS=mode, SESSION_TTL=86_400):
            answers = {path: client.get(path) for path in addresses}
        assert [path for path, answer in answers.items() if answer.status_code >= 400] == []
        html = {
            path: answer.text
            for path, answer in answers.items()
            if "html" in answer["Content-Type"]
        }
        assert {
            path: found for path, text in html.items() if (found := GROUPED.findall(text))
        } == {}


@naive
def test_times_are_moments_with_use_tz_off(host):
    session = make_session()
    now = datetime.now(UTC)
    assert abs(session.created_at - now) < timedelta(minutes=5)
    assert abs(database_now(connection) - now) < timedelta(minutes=5)
    services.append_messages(**TALK, messages=make_messages("a"))
    [row] = services.read_history(**TALK).rows
    assert row.created_at == Message.objects.get().created_at
    # A host that has naive times compares them with ours.
    local = timezone.now()
    assert local.tzinfo is None
    since, until = local - timedelta(minutes=5), local + timedelta(minutes=5)
    assert Session.objects.filter(created_at__range=(since, until)).exists()


@naive
def test_templates_show_local_times_with_use_tz_off(host):
    moment = datetime(2026, 7, 1, 2, tzinfo=UTC)
    session = make_session(last_message_at=moment)
    template = engines["django"].from_string("{{ session.last_message_at|date:'Y-m-d H:i O' }}")
    assert template.render({"session": session}) == "2026-06-30 22:00 -0400"


@naive
def test_times_are_exact_when_the_clocks_change_with_use_tz_off(host):
    """01:30 exists twice in this night."""
    first, second = (datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6))
    make_session("a", archived_at=first, last_message_at=second)
    [session] = Session.objects.filter(archived_at=first, last_message_at__gt=first)
    assert session.last_message_at - session.archived_at == timedelta(hours=1)


@naive
def test_an_export_is_imported_with_use_tz_off(host, tmp_path, capsys):
    expires_at = datetime(2100, 1, 1, tzinfo=UTC)
    services.open_session(**TALK, expires_at=expires_at)
    services.append_messages(**TALK, messages=make_messages("a", "b"))
    created_at = Session.objects.get().created_at
    reason = {"by": "olga", "reason": "a move"}
    call_command("chatmemory_export", scope="server", format="jsonl", **reason)
    file = tmp_path / "talks.jsonl"
    file.write_text(capsys.readouterr().out)
    assert json.loads(file.read_text().splitlines()[0])["expires_at"].startswith("2100-01-01T00:00")
    Message.stored.all().delete(), Session.objects.all().delete()
    call_command("chatmemory_import", str(file), own_scopes=True, **reason)
    [session] = Session.objects.all()
    assert (session.expires_at, session.created_at) == (expires_at, created_at)


@naive
def test_the_tasks_of_cron_run_with_use_tz_off(host):
    old, new = make_session("old"), make_session("new")
    two_minutes_ago = datetime.now(UTC) - timedelta(minutes=2)
    Session.objects.filter(pk=old.pk).update(created_at=two_minutes_ago)
    with ours(SESSION_TTL=60):
        call_command("chatmemory_expire")
        assert [session.pk for session in Session.objects.active()] == [new.pk]
        for task in ("vacuum", "statistics", "search", "check", "audit_verify", "recover"):
            call_command(f"chatmemory_{task}")
    assert AuditEntry.objects.filter(action="purge").exists()


def test_the_time_zone_of_a_connection_changes_no_time():
    made_at = datetime(2026, 7, 1, 12, tzinfo=UTC)
    make_session("a", last_message_at=made_at)
    connection.settings_dict["TIME_ZONE"] = "Asia/Tokyo"
    _forget_zone()
    try:
        session = Session.objects.get(last_message_at=made_at)
        assert session.last_message_at == made_at
        assert abs(session.created_at - database_now(connection)) < timedelta(minutes=5)
    finally:
        connection.settings_dict["TIME_ZONE"] = None
        _forget_zone()


def _forget_zone() -> None:
    """Let the connection read its time zone again."""
    for name in ("timezone", "timezone_name"):
        connection.__dict__.pop(name, None)
    reconnect()
