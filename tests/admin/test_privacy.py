"""The setting TRANSCRIPTS: what the admin shows of conversations, and to whom."""

from __future__ import annotations

import time

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from chatmemory import services
from chatmemory.admin import privacy
from chatmemory.models import AuditEntry, Job, Session
from tests.factories import BY, make_messages, make_session, make_user, make_visitor

pytestmark = pytest.mark.django_db

SECRET = "classified"
ACTION = "/admin/chatmemory/session/action/"
READ = ("view_session", "view_transcript", "tag_session", "redact_message", "archive_session")


def operator(*rights):
    user = make_user(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def talk():
    """Return a session whose title, instructions, metadata and messages contain the secret."""
    session = make_session(
        "order-7",
        owner=make_user("ann"),
        title=f"{SECRET} title",
        instructions=f"{SECRET} instructions",
        metadata={"word": SECRET},
    )
    where = {"session_key": session.key, "scope": session.scope, "by": BY}
    services.append_messages(messages=make_messages(f"{SECRET} 1", f"{SECRET} 2"), **where)
    thought = {"type": "thinking", "thinking": SECRET}
    call = {"id": "c1", "name": "find", "args": {"word": SECRET}}
    calling = {"role": "assistant", "content": [thought], "tool_calls": [call]}
    services.append_messages(messages=[calling], **where)
    return session


@pytest.mark.regression
@pytest.mark.parametrize("mode", ["normal", "masked", "off"])
def test_notes_are_masked_where_the_conversation_is_hidden(talk, settings, mode):
    settings.CHATMEMORY = {"TRANSCRIPTS": mode}
    services.add_note(session_key=talk.key, scope=talk.scope, by=BY, text=f"a {SECRET} note")
    page = operator("view_session", "note_session").get(
        f"/admin/chatmemory/session/{talk.pk}/change/"
    )
    assert (f"a {SECRET} note" in page.content.decode()) is (mode == "normal")
    assert ("•" * len(SECRET) in page.content.decode()) is (mode != "normal")


def pages(session):
    """Return the URLs on which the session is named or shown."""
    base = f"/admin/chatmemory/session/{session.pk}"
    person = f"/admin/chatmemory/session/person/?scope={session.scope}"
    return [
        "/admin/chatmemory/session/",
        f"{base}/change/",
        f"{base}/change/?source=1",
        f"{base}/messages/1/",
        f"{base}/search/?q={SECRET[:4]}",
        f"{base}/messages/1/redact/",
        f"{base}/tags/",
        f"{base}/history/",
        f"/admin/chatmemory/session/action/archive/?session={session.pk}",
        person,
    ]


def shown(client, session):
    """Return which pages show the secret."""
    answers = {address: client.get(address) for address in pages(session)}
    assert {answer.status_code for answer in answers.values()} <= {200, 302, 403, 404}
    return {address for address, answer in answers.items() if SECRET in answer.content.decode()}


def reveal(client, session, **given):
    return client.post(f"/admin/chatmemory/session/{session.pk}/reveal/", given)


@pytest.mark.slow
def test_normal_shows_texts_to_readers(talk):
    assert len(shown(operator(*READ), talk)) == len(pages(talk))


@pytest.mark.slow
def test_a_session_without_a_title_is_called_by_its_first_words_on_each_page(talk):
    Session.objects.update(title="")
    client = operator(*READ)
    client.post(f"{ACTION}archive/?session={talk.pk}", {"reason": "spam", "count": 1})
    named = {*pages(talk), f"/admin/chatmemory/session/jobs/{Job.objects.get().pk}/"}
    named -= {page for page in named if "history" in page}  # Django's own page
    for page in named:
        assert f"{SECRET} 1" in client.get(page).content.decode(), page
    client = operator("view_session", "tag_session", "archive_session")
    for page in named - {page for page in named if "/messages/" in page or "/search/" in page}:
        answer = client.get(page)
        if "/jobs/" not in page:  # a job is its operator's
            assert (answer.status_code, SECRET in answer.content.decode()) == (200, False), page


@pytest.mark.slow
@pytest.mark.parametrize("title", ["", f"{SECRET} title"])
@pytest.mark.parametrize("mode", ["masked", "off"])
def test_no_page_shows_a_text(talk, settings, mode, title):
    Session.objects.update(title=title)
    settings.CHATMEMORY = {"TRANSCRIPTS": mode}
    client = operator(*READ, "view_unmasked")
    assert shown(client, talk) == set()
    listed = client.get("/admin/chatmemory/session/", {"q": SECRET}).content.decode()
    assert "order-7" not in listed, "a search by the title would disclose it"


@pytest.mark.slow
def test_a_reveal_needs_a_reason_and_is_recorded(talk, settings):
    settings.CHATMEMORY = {"TRANSCRIPTS": "masked"}
    client = operator(*READ, "view_unmasked")
    assert reveal(client, talk, reason="").status_code == 200
    assert shown(client, talk) == set()
    assert reveal(client, talk, reason="complaint 12").status_code == 302
    entry = AuditEntry.objects.get(action="reveal")
    assert (entry.session_pk, entry.reason) == (talk.pk, "complaint 12")
    assert f"/admin/chatmemory/session/{talk.pk}/change/" in shown(client, talk)


@pytest.mark.slow
def test_a_reveal_of_a_visitors_session_is_recorded(settings):
    settings.CHATMEMORY = {"TRANSCRIPTS": "masked", "ALLOW_ANONYMOUS": True}
    guest = make_visitor().actor
    here = {"session_key": "a", "by": guest}
    services.append_messages(**here, messages=make_messages(f"{SECRET} 1"), create=True)
    session = services.get_session(**here)
    client = operator(*READ, "view_unmasked")
    assert shown(client, session) == set()
    reveal(client, session, reason="complaint 12")
    assert AuditEntry.objects.get(action="reveal").session_pk == session.pk
    assert shown(client, session)


@pytest.mark.slow
def test_a_reveal_is_of_one_session_one_operator_and_a_while(talk, settings, monkeypatch):
    settings.CHATMEMORY = {"TRANSCRIPTS": "masked"}
    client = operator(*READ, "view_unmasked")
    other = make_session("order-8", owner=make_user("bob"), title=f"{SECRET} too")
    reveal(client, talk, reason="x")
    assert shown(client, other) == {"/admin/chatmemory/session/"}  # the revealed one is listed
    assert shown(operator(*READ, "view_unmasked"), talk) == set()
    later = time.time() + privacy.REVEAL_SECONDS + 1
    monkeypatch.setattr("chatmemory.admin.privacy.time.time", lambda: later)
    assert shown(client, talk) == set()


@pytest.mark.slow
def test_a_reveal_ends_with_the_permission_and_with_a_clear(talk, settings):
    settings.CHATMEMORY = {"TRANSCRIPTS": "masked"}
    client = operator(*READ, "view_unmasked")
    reveal(client, talk, reason="x")
    rights = Permission.objects.get(codename="view_unmasked").user_set
    [user] = rights.all()
    rights.remove(user)
    assert shown(client, talk) == set()
    rights.add(user)
    assert shown(client, talk)
    services.clear_session(session_key=talk.key, scope=talk.scope, by=BY, reason="x")
    assert shown(client, talk) == set()


@pytest.mark.slow
@pytest.mark.parametrize("rights", [READ, ("view_session", "view_unmasked")])
def test_a_reveal_needs_both_permissions(talk, settings, rights):
    settings.CHATMEMORY = {"TRANSCRIPTS": "masked"}
    client = operator(*rights)
    reveal(client, talk, reason="x")
    change = f"/admin/chatmemory/session/{talk.pk}/change/"
    assert not {address for address in shown(client, talk) if change in address}


@pytest.mark.slow
def test_off_reveals_nothing(talk, settings):
    settings.CHATMEMORY = {"TRANSCRIPTS": "masked"}
    client = operator(*READ, "view_unmasked")
    reveal(client, talk, reason="x")
    settings.CHATMEMORY = {"TRANSCRIPTS": "off"}
    assert shown(client, talk) == set()
    assert reveal(client, talk, reason="x").status_code == 302
    assert AuditEntry.objects.filter(action="reveal").count() == 1


def test_a_mask_keeps_the_form_alone():
    assert privacy.mask("Ann, 27: où?") == "•••, ••: ••?"
    assert Session.objects.count() == 0
