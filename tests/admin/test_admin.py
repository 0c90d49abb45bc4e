"""The admin: sessions, transcripts, removal, audit."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from chatmemory import services
from chatmemory.admin.states import state_of
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import SERVER, Actor
from chatmemory.services.removal.withdrawal import withdraw_rows
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, make_messages, make_session, make_user

pytestmark = pytest.mark.django_db

LIST = "/admin/chatmemory/session/"
SAVEPOINTS = 2
"""Statements that a test adds for the transaction of a reading."""

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ALL = (
    "view_session",
    "view_transcript",
    "trim_history",
    "clear_history",
    "purge_history",
    "tag_session",
    "view_audit",
)


def operator(*rights, name="olga"):
    """Return a client with a signed-in operator who has only these permissions."""
    user = make_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin():
    return operator(*ALL)


@pytest.fixture
def root():
    """Return a client with a signed-in superuser."""
    client = Client()
    client.force_login(make_user("root", is_staff=True, is_superuser=True))
    return client


def talk_of(owner, *texts, key="talk", **columns):
    """Return a session of this user with these messages."""
    make_session(key, owner=owner, **columns)
    scope = services.user_scope(owner) if owner else SERVER
    messages = make_messages(*(texts or ("hi", "hello", "where?", "here")))
    services.append_messages(session_key=key, messages=messages, by=BY, scope=scope)
    return services.get_session(session_key=key, by=BY, scope=scope)


@pytest.fixture
def talk():
    """Return Ann's session, which has two turns."""
    return talk_of(make_user("ann"))


def at(name, session, *more):
    return reverse(f"admin:chatmemory_session_{name}", args=[session.pk, *more])


def removal_url(name, *sessions):
    """Return the URL of the page that confirms a removal."""
    named = "&".join(f"session={session.pk}" for session in sessions)
    return f"{LIST}action/{name}/?{named}"


def message_url(_name, session):
    return at("message", session, 1)


def shown(answer):
    """Return the text of a page without its tags."""
    assert answer.status_code == 200
    page = answer.content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page[page.index('id="content"') :]))


def listed(client, **query):
    """Return the keys in the list of sessions."""
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [session.key for session in answer.context["cl"].result_list]


def notices(answer):
    """Return the notices on the page after a removal."""
    assert answer.status_code == 200
    return [str(message) for message in answer.context["messages"]]


def statements(client, address):
    """Return the number of SQL statements of a page."""
    with CaptureQueriesContext(connection) as queries:
        assert client.get(address).status_code == 200
    counted = re.compile(r"COUNT\([^)]*\) AS \S+ FROM .chatmemory_message")
    counting = [query["sql"] for query in queries if counted.search(query["sql"])]
    assert counting == []
    return len(queries)


def test_the_list_shows_the_last_active_first(admin):
    ann = make_user("ann")
    for day, key in ((2, "two"), (3, "three"), (1, "one")):
        at_day = LONG_AGO.replace(day=day)
        days = {"last_message_at": at_day, "last_active_day": at_day.date()}
        make_session(key, owner=ann, last_seq=1, **days)
    assert listed(admin) == ["three", "two", "one"]


@pytest.mark.slow
def test_the_list_shows_active_sessions_unless_filtered(admin):
    ann = make_user("ann")
    for key in ("living", "purged"):
        talk_of(ann, key=key)
    make_session("archived", owner=ann, archived_at=LONG_AGO, last_seq=1)
    make_session("held", owner=ann, held_at=LONG_AGO, last_seq=1)
    make_session("expired", owner=ann, expires_at=LONG_AGO)
    running = make_session("running", owner=ann, running="c1")
    Turn.objects.create(session=running, client_id="c1", status="running", epoch=0)
    services.purge_session(session_key="purged", by=Actor.user(ann), reason="")
    assert set(listed(admin)) == {"living", "archived", "held", "running"}
    for state in ("archived", "held", "expired", "running", "purged"):
        assert listed(admin, state=state) == [state]


@pytest.mark.slow
def test_a_held_or_replying_session_does_not_expire(admin):
    for key, column in (("held", {"held_at": LONG_AGO}), ("running", {"running": "c1"})):
        make_session(key, owner=make_user(key), expires_at=LONG_AGO, last_seq=1, **column)
    assert set(listed(admin)) == {"held", "running"}
    assert listed(admin, state="expired") == []
    assert {str(state_of(session)) for session in Session.objects.all()} == {"held", "running"}


@pytest.mark.slow
def test_the_list_is_filtered_by_activity_and_scope(admin):
    talk_of(make_user("ann"), key="today")
    make_session("silent")
    make_session("old", last_active_day=LONG_AGO.date(), last_message_at=LONG_AGO)
    for active in ("today", "month"):
        assert set(listed(admin, active=active)) == {"today", "silent"}
    assert listed(admin, active="older") == listed(admin, active="oldest") == ["old"]
    assert listed(admin, active="never") == ["silent"]
    assert listed(admin, scope_kind="user") == ["today"]
    assert set(listed(admin, scope_kind="server")) == {"silent", "old"}


@pytest.mark.slow
def test_sessions_are_found_by_key_title_and_owner(admin):
    talk_of(make_user("ann"), key="shop:1", title="A kettle that leaks")
    talk_of(make_user("bob"), key="shop:2", title="Night train")
    assert set(listed(admin, q="shop:")) == {"shop:1", "shop:2"}
    assert listed(admin, q="a KETT") == listed(admin, q="Ann") == ["shop:1"]
    assert listed(admin, q="hello") == listed(admin, q="hop:") == []


TERMS = {
    "quotes": "'\"",
    "%": "%",
    "_": "_",
    "NUL": "a\0b",
    "backslash": "\\",
    "10 kB": "x" * 10_000,
    "10 kB of wildcards": "%_" * 5_000,
    "space": " ",
}


@pytest.mark.parametrize("name", TERMS)
def test_any_search_text_is_accepted(admin, talk, name):
    talk_of(make_user("bob"), key="other", title="x" * 190)
    began = time.monotonic()
    found = listed(admin, q=TERMS[name])
    assert time.monotonic() - began < 10  # usually below 0.2
    assert sorted(found) == (["other", "talk"] if name in ("NUL", "space") else [])


@pytest.mark.slow
def test_pages_need_few_statements_for_any_number_of_rows(admin):
    ann = make_user("ann")
    talk = talk_of(ann, *("hi" for _ in range(300)))
    for number in range(20):
        talk_of(make_user(), key=f"first-{number}")
    pages = (LIST, at("change", talk), at("message", talk, 1), removal_url("trim", talk))
    for page in pages:
        admin.get(page)  # the first reading is written down, content types are kept
    few = [statements(admin, page) for page in pages]
    assert max(few) <= 12 + SAVEPOINTS
    for number in range(20):
        talk_of(make_user(), key=f"other-{number}")
    assert [statements(admin, page) for page in pages] == few


def test_a_session_is_shown_and_cannot_be_changed(root, talk):
    page = root.get(at("change", talk))
    assert 'name="title"' not in page.content.decode()
    inline = {"messages-TOTAL_FORMS": "1", "messages-INITIAL_FORMS": "0", "messages-0-text": "x"}
    for forged in ({"title": "Mine"}, {**inline, "_save": "Save"}):
        assert root.post(at("change", talk), forged).status_code == 403
    talk.refresh_from_db()
    assert (talk.title, talk.last_seq, Message.objects.count()) == ("", 4, 4)


def test_a_message_cannot_be_changed(root, talk):
    message = Message.objects.get(seq=2)
    for address in (
        f"/admin/chatmemory/message/{message.pk}/change/",
        at("message", talk, 2),
        at("change", talk),
    ):
        assert root.post(address, {"text": "mine", "_save": "Save"}).status_code in (
            302,
            403,
            404,
            405,
        )
    message.refresh_from_db()
    assert (message.text, message.revision) == ("hello", 0)


@pytest.mark.parametrize("path", ["add/", "{pk}/delete/"])
def test_nothing_is_added_or_deleted(root, talk, path):
    for model in ("session", "message", "auditentry"):
        address = f"/admin/chatmemory/{model}/" + path.format(pk=1)
        assert root.get(address).status_code == 403
        assert root.post(address, {"post": "yes"}).status_code == 403
    assert Session.objects.filter(pk=talk.pk).exists()


FORGED = {
    "delete_selected": {"action": "delete_selected", "post": "yes"},
    "unknown action": {"action": "no_such"},
    "list_editable": {"_save": "Save", "form-TOTAL_FORMS": "1", "form-0-title": "Mine"},
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_post_to_the_list_is_refused(admin, talk, forged):
    assert admin.post(LIST, {"_selected_action": talk.pk, **forged}).status_code == 403
    assert Session.objects.get().title == ""


def test_the_admin_requires_the_csrf_token(talk):
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("root", is_staff=True, is_superuser=True))
    given = {"reason": "spam", "count": 4}
    assert client.post(removal_url("purge", talk), given).status_code == 403
    assert Session.objects.get().removed_at is None


@pytest.mark.parametrize(
    ("origin", "is_allowed"), [("http://evil.example", False), ("http://testserver", True)]
)
def test_a_post_from_a_foreign_origin_is_rejected(talk, origin, is_allowed):
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("root", is_staff=True, is_superuser=True))
    client.cookies["csrftoken"] = token = "a" * 32
    given = {"reason": "spam", "count": 4, "csrfmiddlewaretoken": token}
    answer = client.post(removal_url("purge", talk), given, headers={"origin": origin})
    assert answer.status_code == (302 if is_allowed else 403)
    assert bool(Session.objects.get().removed_at) is is_allowed


@pytest.mark.slow
def test_a_transcript_is_read_page_by_page(admin):
    talk = talk_of(make_user("ann"), *(f"word {n}" for n in range(1, 121)))
    newest = shown(admin.get(at("change", talk)))
    assert "word 71 " in newest
    assert "word 120 " in newest
    assert "word 70 " not in newest
    older = shown(admin.get(at("change", talk), {"before": 71}))
    assert "word 21 " in older
    assert "word 70 " in older
    assert "word 71 " not in older
    oldest = shown(admin.get(at("change", talk), {"after": 0}))
    assert "word 1 " in oldest
    assert "word 51 " not in oldest


def test_a_transcript_is_ordered_by_seq_after_the_clock_jumped_back(admin, talk):
    Message.objects.filter(seq__gt=2).update(created_at=LONG_AGO)
    page = admin.get(at("change", talk)).content.decode()
    texts = re.findall(r'class="chatmemory-text"[^>]*>([^<]*)<', page)
    assert texts == ["hi", "hello", "where?", "here"]


@pytest.mark.parametrize("number", ["x", "-1", "1" + "0" * 30, "٣", "\0"])
def test_an_invalid_number_shows_the_newest_page(admin, talk, number):
    assert "where?" in shown(admin.get(at("change", talk), {"before": number}))


def rate(session, value, reason=""):
    """Add a turn to the session, and rate its reply."""
    at = {"session_key": session.key, "by": Actor.user(session.owner)}
    name = f"t{session.turns.count()}"
    claim = services.admit_turn(**at, client_id=name, content="hi", owner="me").claim
    reply = {"role": "assistant", "content": "ho"}
    assert finish_turn(claim=claim, status="complete", message=reply)
    services.set_feedback(**at, turn=name, value=value, reason=reason)


@pytest.mark.slow
def test_the_transcript_shows_feedback_beside_the_reply(admin, talk):
    admin.get(at("change", talk))  # caches
    few = statements(admin, at("change", talk))
    rate(talk, -1, "<b>Wrong\u202e</b>")
    rate(talk, 1)
    page = admin.get(at("change", talk)).content.decode()
    assert page.count("Feedback: ") == 2
    assert "Feedback: bad. &lt;b&gt;Wrong" in page
    assert "<b>Wrong" not in page
    assert "\u202e" not in page
    assert "Feedback: good" in shown(admin.get(at("message", talk, 8)))
    assert "Feedback" not in shown(admin.get(at("message", talk, 7)))
    assert statements(admin, at("change", talk)) <= few + 2  # the turns; the range of the reading


def test_a_session_shows_the_counts_of_feedback(admin, talk):
    assert "0 good, 0 bad" in shown(admin.get(at("change", talk)))
    for value in (1, -1, 1):
        rate(talk, value)
    assert "2 good, 1 bad" in shown(admin.get(at("change", talk)))


@pytest.mark.parametrize("pk", ["0", "1" + "0" * 30])
def test_the_pages_of_an_unknown_session_are_not_found(admin, pk):
    for page in ("change/", "messages/1/", "search/?q=a", "next/", "previous/"):
        assert admin.get(f"{LIST}{pk}/{page}").status_code == 404


def test_an_unknown_message_is_not_found(admin, talk):
    for seq in (0, 5, 10**30):
        assert admin.get(at("message", talk, seq)).status_code == 404


HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image": '<img src=x onerror="alert(1)">',
    "javascript link": "<a href='javascript:alert(1)'>click</a>",
    "SVG": "<svg onload=alert(1)>",
    "CSS": "<style>body{display:none}</style>",
    "end of an attribute": '"><b>bold</b>',
    "repaired UTF-8": "\ufffd<b>\ufffd</b>",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_inert_everywhere(admin, text):
    talk = talk_of(make_user("ann"), text, text, title=text)
    services.trim_session(
        session_key="talk",
        keep_last=1,
        by=Actor.operator(talk.owner),
        scope=talk.scope,
        reason=text,
    )
    for page in (
        LIST,
        at("change", talk),
        at("change", talk),
        at("message", talk, 2),
        removal_url("purge", talk),
        "/admin/chatmemory/auditentry/",
    ):
        answer = admin.get(page)
        assert answer.status_code == 200
        assert text not in answer.content.decode()


def test_invisible_characters_are_marked(admin):
    talk = talk_of(make_user("ann"), "safe\u202egpj.exe", "tag\U000e0041 bell\x07 \u200d")
    page = shown(admin.get(at("change", talk)))
    assert "safe⟦U+202E⟧gpj.exe" in page
    assert "tag⟦U+E0041⟧ bell⟦U+0007⟧ \u200d" in page


@pytest.mark.slow
def test_a_long_text_is_truncated_with_a_link_to_the_whole(admin):
    talk = talk_of(make_user("ann"), "hi", "long " * 150_000 + "end")
    page = admin.get(at("change", talk))
    assert len(page.content) < 50_000
    assert at("message", talk, 2) in page.content.decode()
    assert "end" in shown(admin.get(at("message", talk, 2)))


@pytest.mark.slow
def test_a_row_of_5_mb_is_truncated(admin):
    talk = talk_of(make_user("ann"), "hi", "hello")
    Message.objects.filter(seq=2).update(text="<b>\u202e" * 1_000_000)
    admin.get(at("change", talk))
    began = time.monotonic()
    page = admin.get(at("change", talk))
    assert time.monotonic() - began < 10  # usually below 0.3
    assert len(page.content) < 100_000
    assert at("message", talk, 2) in page.content.decode()


def test_truncated_steps_are_marked(admin):
    talk = talk_of(make_user("ann"))
    calls = [
        {"name": name, "args": {"text": letter * count}, "id": letter}
        for name, letter, count in (("short", "a", 10), ("long", "b", 9_000), ("last", "c", 10))
    ]
    thought = {"type": "thinking", "thinking": "d" * 9_000}
    call = {"role": "assistant", "content": [thought], "tool_calls": calls}
    services.append_messages(session_key="talk", messages=[call], by=BY, scope=talk.scope)
    page = shown(admin.get(at("change", talk)))
    assert "a&quot; }" in page
    for cut in ("bbb…", "Tool call last …", "ddd…"):
        assert cut in page


def test_tool_calls_and_errors_are_shown(admin):
    talk = talk_of(make_user("ann"))
    called = {"name": "weather", "args": {"city": "<Lisbon>"}, "id": "t1"}
    thought = {"type": "thinking", "thinking": "Where is <Lisbon>?"}
    call = {"role": "assistant", "content": [thought], "tool_calls": [called]}
    result = {"role": "tool", "content": "sunny", "tool_call_id": "t1"}
    services.append_messages(session_key="talk", messages=[call, result], by=BY, scope=talk.scope)
    Message.objects.filter(seq=2).update(status="failed", error="model_timeout", redacted=True)
    Message.objects.filter(seq=4).update(body="{broken")
    page = shown(admin.get(at("change", talk)))
    assert "Reasoning Where is &lt;Lisbon&gt;?" in page
    assert "Tool call weather { &quot;city&quot;: &quot;&lt;Lisbon&gt;&quot; }" in page
    for note in (
        "sunny",
        "failed",
        "model_timeout",
        "Redacted",
        "unreadable; only its text is shown",
    ):
        assert note in page


@pytest.mark.slow
def test_a_reading_is_recorded_once_an_hour(admin, talk):
    for _ in range(3):
        admin.get(at("change", talk))
        admin.get(at("message", talk, 1))
    [entry] = AuditEntry.objects.all()
    assert (entry.action, entry.session_pk, entry.actor_label) == ("read", talk.pk, "olga")


def test_superseded_rows_are_folded(admin, talk):
    at_talk = {"session_key": talk.key, "scope": talk.scope, "by": Actor.server("tests")}
    edit = {"client_id": "e1", "content": "better", "replaces": 3, "expect_seq": 3}
    services.admit_turn(**at_talk, **edit, owner="me")
    page = admin.get(at("change", talk)).content.decode()
    [folded] = re.findall(r'<li class="chatmemory-version">.*?</details></li>', page, re.DOTALL)
    assert re.findall(r'<li id="m(\d+)"', folded) == ["3", "4"]
    assert "2 messages from #3 on, replaced by the version in #5" in folded
    assert "<details>" in folded
    opened = admin.get(at("change", talk), {"seq": 4}).content.decode()
    assert '<li class="chatmemory-version"><details open>' in opened


def test_withdrawn_rows_are_folded_without_a_newer_version(admin, talk):
    with locked_transaction():
        withdraw_rows(lock_pk(talk.pk), 3, 4)
    page = admin.get(at("change", talk)).content.decode()
    [folded] = re.findall(r'<li class="chatmemory-version">.*?</details></li>', page, re.DOTALL)
    assert re.findall(r'<li id="m(\d+)"', folded) == ["3", "4"]
    assert "2 messages from #3 on, withdrawn</summary>" in folded


def test_messages_are_shown_only_in_their_transcript(admin, talk):
    message = Message.objects.get(seq=2)
    answer = admin.get(f"/admin/chatmemory/message/{message.pk}/change/")
    assert answer["Location"] == at("message", talk, 2)
    assert admin.get("/admin/chatmemory/message/")["Location"] == LIST
    assert admin.get("/admin/chatmemory/message/no-number/change/").status_code == 404


@pytest.mark.regression
def test_an_operator_tags_a_session(talk):
    client = operator("view_session", "tag_session")
    page = at("tags", talk)
    assert "no tags" in shown(client.get(page))
    given = {"tag": "contract <b>", "reason": "signed"}
    assert "contract &lt;b&gt;" in shown(client.post(page, {**given, "action": "add"}, follow=True))
    assert "contract &lt;b&gt;" in shown(client.get(at("change", talk)))
    assert notices(client.post(page, {**given, "action": "add"}, follow=True)) == [
        "No tag was changed."
    ]
    assert "Nothing was changed" in shown(client.post(page, {"action": "add", "tag": "x"}))
    assert "no tags" in shown(client.post(page, {**given, "action": "remove"}, follow=True))
    assert "no tags" in shown(client.post(page, given))
    entries = AuditEntry.objects.order_by("pk").values_list("action", "reason", "actor_label")
    assert list(entries) == [("tag", "signed", "olga"), ("untag", "signed", "olga")]


@pytest.mark.regression
def test_a_changed_tag_leads_back_below_the_prefix_of_the_site(talk, url_prefix):
    client = operator("view_session", "tag_session")
    given = {"tag": "contract", "reason": "signed", "action": "add"}
    answer = client.post(f"/admin/chatmemory/session/{talk.pk}/tags/", given)
    assert answer["Location"] == f"/app/admin/chatmemory/session/{talk.pk}/tags/"


@pytest.mark.regression
def test_the_admin_log_has_each_change_of_a_tag_but_not_its_text(talk):
    client = operator("view_session", "tag_session")
    given = {"tag": "contract", "reason": "signed"}
    for action in ("add", "add", "remove", "remove", "rename"):
        client.post(at("tags", talk), {**given, "action": action})
    client.post(at("tags", talk), {**given, "action": "add", "reason": ""})
    logged = LogEntry.objects.order_by("pk")
    assert [entry.change_message for entry in logged] == ["Tag added", "Tag removed"]
    olga = User.objects.get(username="olga")
    for entry in logged:
        assert (entry.user, entry.action_flag) == (olga, CHANGE)
        assert (entry.object_id, entry.object_repr) == (str(talk.pk), f"conversation {talk.pk}")


@pytest.mark.regression
def test_a_purged_session_is_tagged_too(talk):
    services.purge_session(session_key=talk.key, scope=talk.scope, by=BY, reason="")
    client = operator("view_session", "tag_session")
    client.post(at("tags", talk), {"tag": "contract", "reason": "signed", "action": "add"})
    assert AuditEntry.objects.latest("pk").action == "tag"


@pytest.mark.parametrize(
    ("address", "permission"),
    [
        (message_url, "view_transcript"),
        (removal_url, "trim_history"),
        (removal_url, "purge_history"),
    ],
)
def test_a_refused_operator_is_recorded(talk, address, permission):
    name = permission.removesuffix("_history")
    assert operator("view_session").get(address(name, talk)).status_code == 403
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.session_pk) == ("refused", permission, talk.pk)


@pytest.mark.slow
@pytest.mark.regression
def test_refusals_are_recorded_once_an_hour_for_each_permission():
    """Neither repetition nor other targets add entries, so no operator can fill the audit."""
    sessions = [make_session(f"s{number}") for number in range(12)]
    client = operator("view_session")
    for number in range(12):
        named = sessions if number % 2 else [sessions[number]]
        assert client.get(removal_url("purge", *named)).status_code == 403
    assert client.get(at("message", sessions[0], 1)).status_code == 403
    reasons = AuditEntry.objects.order_by("pk").values_list("reason", flat=True)
    assert list(reasons) == ["purge_history", "view_transcript"]
    AuditEntry.objects.update(created_at=LONG_AGO)
    assert client.get(removal_url("purge", *sessions)).status_code == 403
    assert AuditEntry.objects.latest("pk").session_pk is None


@pytest.mark.regression
@pytest.mark.parametrize("right", ["view_session", "view_transcript"])
def test_prompt_and_metadata_require_the_transcript_permission_and_are_audited(right):
    make_session(instructions="Never lend.", metadata={"bot": "lender"})
    page = operator("view_session", right).get(at("change", Session.objects.get()))
    is_read = right == "view_transcript"
    assert ("Never lend." in shown(page)) == ("lender" in shown(page)) == is_read
    assert AuditEntry.objects.filter(action="read").exists() == is_read


@pytest.mark.regression
def test_an_expired_session_is_purged(admin, talk):
    Session.objects.update(expires_at=LONG_AGO)
    assert admin.get(removal_url("purge", talk)).context["summary"].count == 4
    admin.post(removal_url("purge", talk), {"reason": "old", "count": 4})
    assert Session.objects.get().removed_at is not None
    for name in ("trim", "clear"):
        assert admin.get(removal_url(name, talk)).context["summary"].sessions == 0


def test_a_revoked_permission_applies_at_the_confirmation(talk):
    client = operator("view_session", "purge_history")
    assert client.get(removal_url("purge", talk)).status_code == 200
    Permission.objects.get(codename="purge_history").user_set.clear()
    assert client.post(removal_url("purge", talk), {"reason": "x", "count": 4}).status_code == 403
    assert Session.objects.get().removed_at is None


@pytest.mark.slow
def test_actions_depend_on_permissions(talk):
    def offered(*rights):
        client = operator("view_session", *rights, name="-".join(("op", *rights)))
        form = client.get(LIST).context["action_form"]
        return [name for name, _ in form.fields["action"].choices if name] if form else []

    assert offered() == []
    assert offered("trim_history") == ["trim"]
    assert offered("hold_session") == ["hold", "release"]
    assert offered("purge_history", "export_history") == ["purge", "export"]
    client = operator("view_session", name="other")
    chosen = {"action": "purge", "_selected_action": talk.pk}
    assert client.post(LIST, chosen).status_code == 403


def test_other_users_are_redirected_to_the_login(talk):
    client = Client()
    client.force_login(make_user("eve"))
    for address in (LIST, at("change", talk), removal_url("purge", talk)):
        assert client.get(address).status_code == 302


def test_an_entry_about_a_person_names_no_session(admin, talk):
    scope = services.user_scope(talk.owner)
    entry = services.erase_person(by=BY, scope=scope, reason="").entry
    assert "all conversations of a person" in shown(
        admin.get("/admin/chatmemory/auditentry/?action_is=erase")
    )
    assert "all conversations of a person" in shown(
        admin.get(f"/admin/chatmemory/auditentry/{entry.pk}/change/")
    )


def test_the_audit_is_read_only(admin, talk):
    admin.post(removal_url("clear", talk), {"reason": "asked for", "count": 4})
    entry = AuditEntry.objects.get()
    assert "asked for" in shown(admin.get("/admin/chatmemory/auditentry/?action_is=clear"))
    assert "asked for" not in shown(admin.get("/admin/chatmemory/auditentry/?action_is=purge"))
    assert "asked for" in shown(admin.get(f"/admin/chatmemory/auditentry/?session_pk={talk.pk}"))
    address = f"/admin/chatmemory/auditentry/{entry.pk}/"
    assert "asked for" in shown(admin.get(f"{address}change/"))
    assert admin.post(f"{address}change/", {"reason": "mine"}).status_code == 403
    assert admin.post(f"{address}delete/", {"post": "yes"}).status_code == 403


@pytest.mark.slow
def test_the_pages_have_no_inline_script_or_style(admin, talk):
    for page in (
        LIST,
        at("change", talk),
        at("change", talk),
        at("message", talk, 1),
        at("tags", talk),
        removal_url("trim", talk),
        removal_url("purge", talk),
        "/admin/chatmemory/auditentry/",
    ):
        html = admin.get(page).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)", html), page
        assert not re.search(r"<style|\sstyle=|\son\w+=", html), page
