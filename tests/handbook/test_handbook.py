"""The steps of the how-tos of operators work. Each test is named for its chapter."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from django.db.models import F

from chatmemory import services
from chatmemory.errors import Held
from chatmemory.models import AuditEntry, DatabaseNow, Message, Session, Turn
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.progress import finish_turn, start_turn
from chatmemory.statistics.roll_up import roll_up_statistics
from tests.admin.visits import talk_of
from tests.factories import BY, make_user
from tests.handbook.reading import chapters
from tests.handbook.visiting import Visit
from tests.management.commanding import run

pytestmark = pytest.mark.django_db

TITLE = "Where is order 4711?"
LEAD, PROTECTION = "Chat lead", "Chat data protection"
SECRET = "sk-live-4711"


def make_talk(*texts, key="order-4711"):
    """Return a session of Ann."""
    ann = User.objects.filter(username="ann").first() or make_user("ann")
    return talk_of(ann, *texts, key=key, title=TITLE)


def address_of(session):
    return {"session_key": session.key, "scope": session.scope, "by": BY}


def last_action():
    """Return the action, the actor and the reason of the newest audit entry of an action."""
    entry = AuditEntry.objects.exclude(action="read").latest("pk")
    return entry.action, entry.actor_label, entry.reason


def messages_of(session):
    return [row.text for row in Message.stored.filter(session=session).order_by("seq")]


def test_each_chapter_has_a_test():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in chapters() if f"def test_{name}(" not in tests] == []


@pytest.mark.slow
def test_roles_and_the_first_sign_in(chapter, sign_in):
    assert chapter.run("chatmemory_roles")[0] == 0
    groups = {group.name: group for group in Group.objects.order_by("pk")}
    carl = make_user("carl")
    root = sign_in(is_superuser=True)
    root.click("Users")
    root.follow("carl")
    root.tick("Staff status")
    root.fill("Groups", groups["Chat support"].pk)
    root.press("Save")
    assert [*carl.groups.all()] == [groups["Chat support"]]

    page = Visit(chapter)
    page.fill("Username", "carl")
    page.fill("Password", "secret")
    page.press("Log in")
    page.see("Chat memory", "Conversations")
    assert page.client.get("/admin/chatmemory/auditentry/").status_code == 403

    carl.groups.set([groups["Chat auditor"]])
    page.open("/admin/")
    page.click("Audit entries")
    page.click("Refused")
    assert "view_audit" in page.text


@pytest.mark.slow
def test_undo_a_purge(chapter, sign_in):
    talk = make_talk()
    page = sign_in(LEAD)
    purge = f"/admin/chatmemory/session/action/purge/?session={talk.pk}"
    page.client.post(purge, {"reason": "spam", "count": 4})
    page.open("/admin/chatmemory/session/")
    page.press("Undo")
    assert last_action() == ("restore", "olga", "Undo: spam")
    page.client.post(purge, {"reason": "spam", "count": 4})
    page.click("Conversations")
    page.click("Jobs")
    page.follow("Purge:")
    page.click("Undo…")
    assert "Restore 4 messages" in page.text
    page.fill("Reason", "wrong conversation")
    page.press("Undo in 1 conversation")
    page.see("Restore: 1 conversation", "Complete", "Done")
    assert last_action() == ("restore", "olga", "wrong conversation")
    assert services.get_session(**address_of(talk)).message_count == 4

    services.purge_session(**address_of(talk), reason="spam")
    page.open("/admin/")
    page.click("Conversations")
    page.click("Purged")
    page.follow(TITLE)
    assert "tests" in page.text
    page.see("Manage")
    page.click("Restore…")
    assert "Restore 4 messages" in page.text
    page.fill("Reason", "a mistake")
    page.press("Restore")
    assert "4 messages of" in page.text
    assert last_action() == ("restore", "olga", "a mistake")
    assert services.get_session(**address_of(talk)).message_count == 4

    services.purge_session(**address_of(talk), reason="spam")
    assert chapter.run("chatmemory_action")[0] == 0
    assert services.get_session(**address_of(talk)).message_count == 4


@pytest.mark.slow
def test_find_yesterday_s_failed_turn(chapter, sign_in):
    failed, other = make_talk(), talk_of(make_user("bob"), key="other", title="Another one")
    claim = services.admit_turn(
        **address_of(failed), client_id="c1", content="And now?", owner="tests"
    ).claim
    start_turn(claim=claim)
    finish_turn(
        claim=claim,
        status="failed",
        error="model_timeout",
        message={"role": "assistant", "content": "Y"},
    )
    Turn.objects.update(ended_at=DatabaseNow() - timedelta(minutes=10))
    roll_up_statistics()
    page = sign_in(LEAD)
    page.click("Conversations")
    assert other.title in page.text
    page.see("Failed 24 h")
    page.follow("Failed 24 h")
    assert other.title not in page.text
    page.see("Failed 7 days")
    page.follow("Failed 7 days")
    page.given["q"] = "ann"
    page.press("Search")
    page.follow(TITLE)
    page.see("Failed")
    assert "model_timeout" in page.text
    page.fill("New note", "model_timeout")
    page.press("Add note")
    assert last_action()[:2] == ("note", "olga")
    assert [note.text for note in failed.notes.all()] == ["model_timeout"]
    page.click("Statistics")
    page.see("Failures by code")
    assert re.search(r"Failures by code .*model_timeout 1", page.text)


@pytest.mark.slow
def test_a_request_of_a_person(chapter, sign_in, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    talk, held = make_talk(), make_talk(key="held")
    scope = talk.scope
    services.hold_session(**address_of(held), reason="case 9")
    names = {"order-4711", scope}
    assert _dumped() & names == names
    page = sign_in(PROTECTION)
    page.click("Conversations")
    page.click("People")
    page.fill("Find a person", "ann")
    page.press("Find")
    person = page.address
    page.follow(TITLE)
    page.see("Scope")
    page.follow(scope)
    assert page.address == person
    page.click("Export…")
    page.choose("Format", "Markdown")
    page.fill("Reason", "request 12")
    page.press("Download")
    assert TITLE in b"".join(page.answer.streaming_content).decode()
    assert last_action() == ("export", "olga", "request 12")

    page.open(person)
    page.click("Erase…")
    page.see("Conversations", "Messages", "Turns", "Kept because of a hold")
    page.fill("Reason", "request 12")
    page.fill("Name", "ann")
    page.press("Erase permanently")
    page.see("Receipt:", "Erasures", "Completed", "Conversations kept because of a hold")
    assert last_action() == ("erase", "olga", "request 12")
    assert [*Session.objects.filter(scope=scope)] == [held]

    assert chapter.run("chatmemory_export")[0] == 0
    assert "held" in (tmp_path / "ann.jsonl").read_text()
    services.release_session(**address_of(held), reason="closed")
    status, output = chapter.run("chatmemory_erase")
    assert (status, "1 conversation, 4 messages" in output) == (0, True)
    assert Session.objects.filter(scope=scope).exists()
    status, output = chapter.run("chatmemory_erase")
    assert (status, "The receipt is audit entry" in output) == (0, True)
    assert not Session.objects.filter(scope=scope).exists()
    page.open(person)
    page.see("No conversation is stored.")
    assert "0 conversations, 0 messages, 0 turns" in run("chatmemory_person", "--scope", scope)[1]
    assert _dumped() & names == set()

    page.open("/admin/")
    page.click("Conversations")
    page.click("People")
    people = page.address
    page.open(people, q=scope)
    page.see("Erasures", "Receipt")
    page.open(people, q=services.user_scope(make_user("bob")))
    page.see("This person was never erased.")
    User.objects.get(username="ann").delete()
    page.open(people, q="order-4711")
    page.see("Erasures of a conversation with this key")
    assert chapter.run("chatmemory_erased", scope=scope)[0] == 0
    assert chapter.run("chatmemory_person")[0] == 0


def _dumped() -> set[str]:
    """Return the texts of all rows of the app."""
    return set(re.findall(r'"([^"]*)"', run("dumpdata", "chatmemory", "--all")[1]))


@pytest.mark.slow
def test_legal_hold(chapter, sign_in):
    talk, purged = make_talk(), make_talk(key="purged")
    Session.objects.filter(pk=purged.pk).update(title="An old one")
    services.purge_session(**address_of(purged), reason="spam")
    page = sign_in(PROTECTION, LEAD)
    page.click("Conversations")
    page.follow(TITLE)
    page.see("Manage")
    page.click("Put on hold…")
    page.fill("Reason", "case 9")
    page.press("Put on hold")
    page.see("on hold")
    assert "case 9" in page.text
    assert last_action() == ("hold", "olga", "case 9")
    with pytest.raises(Held):
        services.purge_session(**address_of(talk), reason="spam")

    for key in ("second", "third"):
        make_talk(key=key)
    page.open("/admin/")
    page.click("Conversations")
    page.click("People")
    page.fill("Find a person", "ann")
    page.press("Find")
    page.click("Put all on hold…")
    page.fill("Reason", "case 9")
    page.press("Put on hold")
    assert "2 conversations put on hold." in page.text
    assert Session.objects.filter(held_at__isnull=False).count() == 3

    page.open("/admin/")
    page.click("Conversations")
    page.click("Purged")
    page.follow("An old one")
    page.follow("Put on hold")
    page.given["reason"] = "case 9"
    page.submit("Put on hold")
    Session.objects.filter(pk=purged.pk).update(removed_at=F("removed_at") - timedelta(days=60))
    vacuum()
    page.click("Show the removed messages")
    assert "hello" in page.text

    page.open("/admin/")
    page.click("Conversations")
    page.click("On hold")
    page.follow(TITLE)
    page.see("Manage")
    page.click("Release…")
    page.fill("Reason", "closed")
    page.press("Release")
    assert last_action() == ("release", "olga", "closed")

    assert chapter.run("chatmemory_action")[0] == 0
    assert not Session.objects.filter(held_at__isnull=True).exists()
    assert chapter.run("chatmemory_action")[0] == 0
    assert not Session.objects.filter(held_at__isnull=False).exists()


@pytest.mark.slow
def test_a_leaked_key_in_a_message(chapter, sign_in, tmp_path):
    talk = make_talk(f"My key is {SECRET}", f"{SECRET} is no order", "Oh", "Yes")
    Session.objects.filter(pk=talk.pk).update(instructions=f"Never say {SECRET}")
    page = sign_in(LEAD)
    page.click("Conversations")
    page.follow(TITLE)
    page.click("Redact…")
    page.fill("Text to find", SECRET)
    page.press("Find the text")
    page.see("Also redact")
    page.see("This text is also in")
    page.fill("Reason", "a leaked key")
    page.fill("Texts to redact", "2")
    page.press("Redact")
    page.see("2 texts were redacted.", "Redacted", "Scope")
    assert last_action() == ("redact", "olga", "a leaked key")
    assert messages_of(talk) == ["", "", "Oh", "Yes"]

    Session.objects.filter(pk=talk.pk).update(instructions="")
    other = make_talk(f"My key is {SECRET}", key="other")
    leak = tmp_path / "leak"
    leak.write_text(SECRET)
    status, output = chapter.run("chatmemory_redact", leak=str(leak))
    assert (status, output.splitlines()[-1]) == (1, "1 text found: 1 to redact")
    status, output = chapter.run("chatmemory_redact", leak=str(leak))
    assert (status, output.splitlines()[-1]) == (0, "1 text found: 1 redacted")
    assert messages_of(other) == [""]


@pytest.mark.slow
def test_when_the_health_page_is_red(chapter, sign_in):
    stuck = make_talk()
    services.admit_turn(**address_of(stuck), client_id="c1", content="And now?")
    claim_next(session_pk=stuck.pk, owner="dead")
    Turn.objects.update(lease_until=DatabaseNow() - timedelta(minutes=5))
    page = sign_in(LEAD)
    page.click("Conversations")
    page.click("Health")
    health = page.address
    page.see("Database", "Channel layer", "Last sweep of this process")
    for label, is_red in (
        ("Stuck turns that run", True),
        ("Stuck turns that wait", False),
        ("Daily figures up to", True),
        ("Chats without a complete search index", False),
    ):
        page.see(label)
        assert page.is_red(label) is is_red, label
    page.see("Maintenance", "Command", "never ran")
    assert [chapter.run(f"chatmemory_{name}")[0] for name in ("recover", "maintain")] == [0, 0]
    page.open(health)
    page.see("good", "The app works.")
    assert "chatmemory-bad" not in page.answer.content.decode()
