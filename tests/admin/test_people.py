"""A person in the admin: finding, numbers, export, erasure, and its limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from chatmemory import services
from chatmemory.admin.people import pages
from chatmemory.database.batches import PAGE_ROWS
from chatmemory.models import AuditEntry, Session
from chatmemory.services import Actor
from tests.admin.visits import notices, shown
from tests.factories import BY, make_messages, make_session, make_user

pytestmark = pytest.mark.django_db

PEOPLE = "/admin/chatmemory/session/people/"
ALL = ("view_session", "export_history", "erase_person", "view_audit", "view_user")
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def operator(*rights):
    user = make_user(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin():
    return operator(*ALL)


def talk_of(owner, key, *texts):
    make_session(key, owner=owner)
    where = {"session_key": key, "scope": services.user_scope(owner), "by": BY}
    services.append_messages(messages=make_messages(*(texts or ("hi", "hello"))), **where)
    return services.get_session(**where)


@pytest.fixture
def ann():
    return make_user("ann", email="ann.miller@example.com")


def url(name, scope):
    return f"{reverse(f'admin:chatmemory_session_{name}')}?scope={scope}"


def found(client, term):
    """Return the scopes that a search leads to."""
    answer = client.get(PEOPLE, {"q": term})
    if answer.status_code == 302:
        return [answer.url.split("scope=")[1].replace("%3A", ":")]
    return [person.scope for person, _ in answer.context["people"]]


def test_a_person_is_found_by_name_address_key_and_scope(admin, ann):
    scope = services.user_scope(ann)
    talk_of(ann, "order-4711")
    for term in ("ann", "Ann", "miller@example", "order-4711", scope, f" {scope} "):
        assert found(admin, term) == [scope], term
    visitor = "visitor:" + "ab" * 32
    assert found(admin, visitor) == [visitor]
    for term in ("nobody", "order", "user:", "removed:7", "%", "x" * 5_000, "x\0y", ""):
        assert found(admin, term) == [], term


def test_several_matches_are_listed(admin, ann):
    bob = make_user("bob", email="ann.fan@example.com")
    assert set(found(admin, "ann")) == {services.user_scope(user) for user in (ann, bob)}


def test_without_view_user_only_owners_of_visible_sessions_are_found(ann):
    client = operator("view_session")
    assert found(client, "ann") == []
    talk_of(ann, "a")
    assert found(client, "an") == [services.user_scope(ann)]
    assert found(client, "ann.miller@example.com") == []
    page = client.get(PEOPLE, {"q": "ann.miller@example.com"}).content.decode()
    assert "You do not have permission to view users" in page


def test_the_page_shows_what_is_stored(admin, ann):
    talk_of(ann, "one", "a", "b", "c", "d")
    talk_of(ann, "two")
    talk_of(ann, "three")
    where = {"scope": services.user_scope(ann), "by": BY, "reason": "x"}
    services.trim_session(session_key="one", keep_last=2, **where)
    services.purge_session(session_key="two", **where)
    services.hold_session(session_key="three", **where)
    answer = admin.get(url("person", services.user_scope(ann)))
    stored = answer.context["stored"]
    assert (stored.sessions, stored.held, stored.purged, stored.archived) == (3, 1, 1, 0)
    assert (stored.messages, stored.hidden_messages) == (4, 4)
    assert [str(session) for session, _, _ in answer.context["rows"]] == ["three", "two", "one"]
    assert "This person was never erased." in answer.content.decode()
    Session.objects.update(tokens=411_522)
    text = shown(admin.get(url("person", services.user_scope(ann))))
    counts = "3 conversations, 1 on hold, 1 purged · 4 messages, 4 hidden · 1,234,566 tokens"
    assert f"{counts} · first just now · last just now" in text
    assert text.index("Export…") < text.index(counts) < text.index("three") < text.index("Erasures")


def test_a_person_is_named_by_the_scope_and_not_by_the_owner_of_a_session(admin, ann):
    talk = talk_of(ann, "one")
    Session.objects.update(owner=make_user("bob"))
    assert admin.get(url("person", talk.scope)).context["title"] == "ann"


def test_without_permissions_and_sessions_the_page_has_no_empty_parts(ann):
    page = operator("view_session").get(url("person", services.user_scope(ann))).content.decode()
    assert "No conversation is stored." in page
    for part in ("chatmemory-buttons", "chatmemory-summary", "chatmemory-scroll"):
        assert part not in page


def test_the_page_is_bounded_and_leads_to_older_sessions(admin, ann, monkeypatch):
    monkeypatch.setattr("chatmemory.admin.people.pages.PAGE_ROWS", 2)
    for number in range(5):
        make_session(f"s{number}", owner=ann)
    seen, address = [], url("person", services.user_scope(ann))
    while address:
        answer = admin.get(address)
        seen += [session.key for session, _, _ in answer.context["rows"]]
        older = answer.context["older"]
        address = older and f"{url('person', services.user_scope(ann))}&before={older}"
    assert seen == ["s4", "s3", "s2", "s1", "s0"]


@pytest.mark.slow
def test_the_page_takes_the_same_statements_for_any_number_of_sessions(admin, ann):
    address = url("person", services.user_scope(ann))
    counts = []
    for number in range(1, 30, 14):
        for more in range(number):
            make_session(f"{number}-{more}", owner=ann)
        with CaptureQueriesContext(connection) as queries:
            assert admin.get(address).status_code == 200
        counts.append(len(queries))
    assert len(set(counts)) == 1
    assert counts[0] <= 16  # four of them count the derived rows of optional apps


@pytest.mark.slow
def test_the_preview_of_an_erasure_takes_as_many_statements_for_the_busiest_person(admin, ann):
    scope, counts = services.user_scope(ann), []
    for page in range(2):
        Session.objects.bulk_create(
            Session(scope=scope, owner=ann, key=f"{page}-{n}") for n in range(1 + page * PAGE_ROWS)
        )
        with CaptureQueriesContext(connection) as queries:
            assert "Erase permanently" in shown(admin.get(url("person_erase", scope)))
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 13


def test_an_erasure_is_previewed_confirmed_and_has_a_receipt(admin, ann):
    talk_of(ann, "one", "a", "b", "c", "d")
    kept = talk_of(ann, "kept")
    scope = services.user_scope(ann)
    services.hold_session(session_key="kept", scope=scope, by=BY, reason="dispute")
    with CaptureQueriesContext(connection) as queries:
        page = admin.get(url("person_erase", scope))
    assert len(queries) <= 14  # four of them count the derived rows of optional apps
    assert (page.context["preview"].sessions, page.context["preview"].messages) == (1, 4)
    assert page.context["held"] == {kept.pk: "kept"}

    wrong = admin.post(url("person_erase", scope), {"reason": "GDPR", "confirm": "bob"})
    assert wrong.status_code == 200
    assert "Type the name exactly" in wrong.content.decode()
    assert Session.objects.filter(owner=ann).count() == 2

    done = admin.post(url("person_erase", scope), {"reason": "GDPR", "confirm": "ann"}, follow=True)
    assert [*Session.objects.filter(scope=scope)] == [kept]
    receipt = AuditEntry.objects.get(action="erase", session_pk=None)
    assert (receipt.actor_kind, receipt.reason, receipt.counts["messages"]) == (
        "operator",
        "GDPR",
        4,
    )
    text = done.content.decode()
    assert f"Receipt: {receipt.pk}." in text
    assert "Conversations kept because of a hold: 1." in text
    assert "This person was never erased." not in text


def test_a_large_erasure_runs_after_the_response(admin, ann, monkeypatch):
    monkeypatch.setattr("chatmemory.admin.people.actions.MAX_ERASED_AT_ONCE", 1)
    talk_of(ann, "one")
    scope = services.user_scope(ann)
    given = {"reason": "GDPR", "confirm": "ann"}
    with pytest.MonkeyPatch.context() as patch:
        started = []
        patch.setattr("chatmemory.services.erasure.erasure.call_after_commit", started.append)
        answer = admin.post(url("person_erase", scope), given, follow=True)
    assert "The erasure has started." in answer.content.decode()
    assert Session.objects.filter(scope=scope).exists()
    [erase] = started
    erase()
    assert not Session.objects.filter(scope=scope).exists()
    assert "GDPR" in admin.get(url("person", scope)).content.decode()


def test_the_erasure_of_a_deleted_user_is_found_by_scope_and_by_key(admin, ann):
    talk_of(ann, "order-4711")
    scope = services.user_scope(ann)
    services.erase_person(by=BY, reason="GDPR", scope=scope)
    ann.delete()
    assert "GDPR" in admin.get(url("person", scope)).content.decode()
    assert found(admin, "order-4711") == []
    by_key = admin.get(PEOPLE, {"q": "order-4711"})
    assert [erasure.reason for erasure in by_key.context["erasures"]] == ["GDPR"]
    other = admin.get(PEOPLE, {"q": "order-1"})
    assert "No conversation with this key was erased." in other.content.decode()


def test_without_the_permissions_erasures_stay_unknown(ann):
    talk_of(ann, "order-4711")
    scope = services.user_scope(ann)
    services.erase_person(by=BY, reason="GDPR", scope=scope)
    client = operator("view_session")
    assert client.get(url("person", scope)).context["record"] is None
    assert client.get(PEOPLE, {"q": "order-4711"}).context["erasures"] is None


def test_an_export_is_audited_and_downloaded(admin, ann):
    talk_of(ann, "one", "where is it?", "here")
    scope = services.user_scope(ann)
    given = {"format": "csv", "reason": "GDPR, article 15"}
    answer = admin.post(url("person_export", scope), given)
    text = b"".join(answer.streaming_content).decode()
    assert "where is it?" in text
    assert answer["Content-Disposition"] == f'attachment; filename="chats-user-{ann.pk}.csv"'
    entry = AuditEntry.objects.get(action="export")
    assert (entry.reason, entry.counts["messages"]) == ("GDPR, article 15", 2)
    for wrong in ({"format": "exe", "reason": "x"}, {"format": "csv", "reason": ""}):
        assert admin.post(url("person_export", scope), wrong).status_code == 200
    assert AuditEntry.objects.filter(action="export").count() == 1


@pytest.mark.parametrize("scope", ["", "user:", "user:01", "removed:7", "importing:user:7", "x"])
def test_no_page_exists_for_another_text(admin, scope):
    for name in ("person", "person_export", "person_erase"):
        assert admin.get(url(name, scope)).status_code == 404


def test_no_person_is_exported_or_erased_by_an_operator_who_sees_a_part(settings, ann):
    talk_of(ann, "visible")
    settings.ROOT_URLCONF = "tests.scoped_admin"
    scope = services.user_scope(ann)
    foreign = talk_of(ann, "foreign")
    Session.objects.filter(pk=foreign.pk).update(owner=make_user("bob"))
    client = operator(*ALL)
    assert client.get(url("person", scope)).context["stored"].sessions == 1
    services.hold_session(session_key="foreign", scope=scope, by=BY, reason="dispute")
    AuditEntry.objects.all().delete()
    page = shown(client.get(url("person_erase", scope)))
    assert ("conversations that you cannot view" in page, "foreign" in page) == (True, False)
    assert "Kept because of a hold" not in page
    for name, given in (
        ("person_erase", {"confirm": "ann"}),
        ("person_export", {"format": "csv"}),
    ):
        answer = client.post(url(name, scope), {"reason": "x", **given})
        assert answer.status_code == 200
        assert "conversations that you cannot view" in answer.content.decode()
    assert Session.objects.filter(scope=scope).count() == 2
    assert not AuditEntry.objects.exists()


def test_a_server_session_is_a_person_of_its_own(admin):
    make_session("nightly")
    assert found(admin, "nightly") == ["server"]
    assert User.objects.filter(username="server").count() == 0
    services.erase_person(by=Actor.server("tests"), reason="x", scope="server")
    assert "No conversation is stored." in admin.get(url("person", "server")).content.decode()


ACTING = ("view_session", "purge_history", "hold_session", "restore_history")


def test_all_conversations_of_a_person_are_purged_from_the_page_and_back(ann):
    talks = [talk_of(ann, f"a{n}") for n in range(2)]
    held, other = talk_of(ann, "held"), talk_of(make_user("bob"), "b")
    services.hold_session(session_key="held", scope=held.scope, by=BY, reason="a case")
    client, page = operator(*ACTING), url("person", held.scope)
    links = client.get(page).context
    asked = client.get(links["purge_url"])
    assert {one.pk for one in asked.context["selection"].listed} == {t.pk for t in [*talks, held]}
    assert "The conversation is on hold." in shown(asked)
    done = client.post(links["purge_url"], {"reason": "spam", "count": 4}, follow=True)
    assert done.redirect_chain[-1][0].startswith(page.split("?")[0])
    assert "2 conversations purged." in notices(done)[0]
    kept = Session.objects.filter(removed_at=None)
    assert {one.pk for one in kept} == {held.pk, other.pk}
    assert "/action/hold/?all=1&owner_is=user" in done.context["hold_url"]


def test_only_what_the_operator_may_do_to_listed_conversations_is_offered(ann):
    talk = talk_of(ann, "a")
    page = url("person", talk.scope)
    assert "…" not in shown(operator("view_session").get(page))
    held = operator("view_session", "hold_session").get(page)
    assert "Put all on hold…" in shown(held)
    assert "Purge all…" not in shown(held)
    services.purge_session(session_key="a", scope=talk.scope, by=BY, reason="x")
    assert "…" not in shown(operator(*ACTING).get(page))


def test_the_actions_on_all_depend_on_all_conversations_and_not_on_the_page(ann, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_ROWS", 2)
    talks = [talk_of(ann, f"talk-{n}") for n in range(4)]
    ended = Session.objects.filter(pk__in=[talk.pk for talk in talks[:3]])
    ended.update(expires_at=timezone.now() - timedelta(days=1))
    client, page = operator(*ACTING), url("person", talks[0].scope)
    assert "Purge all…" in shown(client.get(f"{page}&before={talks[2].pk}"))
    Session.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert "Purge all…" not in shown(client.get(page))
