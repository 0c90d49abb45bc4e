"""What an operator reads before and after an action, and what a repeated confirmation does."""

from __future__ import annotations

import re
from datetime import timedelta
from threading import Event
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F
from django.template.loader import render_to_string
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.formats import date_format

from chatmemory import services
from chatmemory.admin.jobs import base
from chatmemory.admin.jobs.words import EXPORT
from chatmemory.models import AuditEntry, Job, JobAction, Session, Turn
from chatmemory.services import Actor
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.turns.progress import finish_turn, start_turn
from tests.admin.visits import (
    ACTING,
    LIST,
    action_url,
    confirm,
    confirmation,
    job_url,
    notices,
    operator,
    shown,
    talk_of,
)
from tests.factories import BY, make_session, make_user
from tests.locking import WAITING, concurrently, held, second_connection
from tests.servers import wait_for

pytestmark = pytest.mark.django_db

READING = (*ACTING, "view_transcript")


@pytest.fixture
def admin():
    return operator(*ACTING)


@pytest.fixture
def talk():
    return talk_of(make_user("ann"), title="Kettle")


def of(session):
    return {"session_key": session.key, "scope": session.scope, "by": BY}


def end_of_undo(days=30):
    return date_format(timezone.localtime(timezone.now() + timedelta(days=days)), "DATE_FORMAT")


def test_each_action_has_its_texts():
    for name in (*JobAction.values, EXPORT):
        context = {"action": name, "name": "Kettle", "messages": 2, "kept": 2, "last": 2}
        for template in ("question", "explanation"):
            text = render_to_string(f"admin/chatmemory/job/{template}.html", context)
            assert len(text.split()) > 4, (template, name)
        if name != EXPORT:
            job = Job(action=name, done=2, counts={})
            several = render_to_string("admin/chatmemory/job/done.html", {"job": job})
            one = render_to_string("admin/chatmemory/job/done.html", {"job": job, "name": "Kettle"})
            assert "2 " in several, name
            assert "Kettle" in one, name


@pytest.mark.parametrize(
    ("action", "question"),
    [
        ("trim", "Remove messages 1 to 2 of “Kettle” and keep the newest 2?"),
        ("clear", "Remove all 4 messages of “Kettle”?"),
        ("purge", "Remove “Kettle” with its 4 messages?"),
    ],
)
def test_a_removal_from_one_session_is_one_question_with_the_end_of_its_undo(
    admin, talk, action, question
):
    page = admin.get(action_url(action, talk))
    assert f"{question} Can be undone until {end_of_undo()}. " in shown(page)
    assert "chatmemory-scroll" not in page.content.decode()


@pytest.mark.parametrize(
    ("action", "undo"),
    [
        ("hold", "Can be released at any time."),
        ("archive", "Can be undone at any time."),
        ("tag", "Can be undone at any time."),
        ("stop", "Cannot be undone."),
    ],
)
def test_other_actions_state_whether_they_can_be_undone(admin, talk, action, undo):
    services.admit_turn(**of(talk), client_id="c", content="?", owner="tests")
    assert undo in shown(admin.get(action_url(action, talk)))
    assert undo in shown(admin.get(action_url(action, talk, talk_of(None, key="other"))))


def test_the_undo_depends_on_the_setting_and_on_the_operator(talk, settings):
    client = operator("view_session", "purge_history")
    page = shown(client.get(action_url("purge", talk)))
    assert f"Can be undone until {end_of_undo()}, by an operator who may restore." in page
    settings.CHATMEMORY = {"UNDO_DAYS": 0}
    assert "Cannot be undone." in shown(client.get(action_url("purge", talk)))


def test_a_session_that_stays_as_it_is_gets_one_sentence_and_no_button(admin, talk):
    services.hold_session(**of(talk), reason="")
    page = admin.get(action_url("trim", talk))
    assert shown(page).count("The conversation is on hold.") == 1
    assert "“Kettle” stays as it is. The conversation is on hold." in shown(page)
    assert "undone" not in shown(page)
    assert 'name="count"' not in page.content.decode().replace('type="hidden" name="count"', "")


@pytest.mark.parametrize(("messages", "kept"), [(1, 1), (4, 2), (51, 25), (100, 50), (120, 50)])
def test_a_trim_begins_with_a_number_that_removes_something(admin, messages, kept):
    talk = talk_of(None, *(f"text {n}" for n in range(messages)))
    page = admin.get(action_url("trim", talk))
    assert f'name="value" value="{kept}"' in page.content.decode()
    assert ("There is nothing to change." in shown(page)) == (messages == 1)
    several = admin.get(action_url("trim", talk, talk_of(None, key="other")))
    assert 'name="value" value="50"' in several.content.decode()


def test_a_trim_at_a_message_shows_the_real_border_and_records_its_reading(talk):
    reader = operator(*READING)
    address = f"{action_url('trim', talk)}&before_seq=4"
    page = reader.get(address)
    assert '<option value="before_seq" selected>' in page.content.decode()
    assert 'name="value" value="4"' in page.content.decode()
    assert (
        "Remove messages 1 to 2 of “Kettle” and keep the newest 2? "
        "Last that goes #2 assistant: hello First that stays #3 user: where?"
    ) in shown(page)
    entry = AuditEntry.objects.get(action="read")
    assert (entry.from_seq, entry.to_seq, entry.session_pk) == (2, 3, talk.pk)
    confirm(reader, address, limit="before_seq", value="4")
    assert Session.objects.get().first_seq == 3


def test_a_trim_of_all_has_no_message_that_stays(talk):
    page = shown(operator(*READING).get(f"{action_url('trim', talk)}&before_seq=9"))
    assert "Remove all 4 messages of “Kettle”? Last that goes #4 assistant: here Can be" in page
    assert AuditEntry.objects.get(action="read").to_seq == 4


@pytest.mark.parametrize("mode", ["masked", "off", "no permission"])
def test_the_border_of_a_trim_shows_no_words_that_the_operator_may_not_read(talk, settings, mode):
    rights = ACTING if mode == "no permission" else READING
    if mode != "no permission":
        settings.CHATMEMORY = {"TRANSCRIPTS": mode}
    page = shown(operator(*rights).get(f"{action_url('trim', talk)}&before_seq=3"))
    assert "Remove messages 1 to 2 of" in page
    assert "hello" not in page
    assert ("#2 assistant: •••••" in page) == (mode == "masked")
    assert ("Kettle" in page) == (mode == "no permission")
    assert AuditEntry.objects.filter(action="read").exists() == (mode == "masked")


@pytest.mark.parametrize("messages", [100, 101])
@pytest.mark.parametrize("action", [*ACTIONS])
def test_only_a_removal_of_more_than_100_messages_of_a_session_asks_for_the_number(
    admin, action, messages
):
    talk = talk_of(None, *(f"text {n}" for n in range(messages)))
    before = {"release": "hold_session", "restore": "purge_session", "unarchive": "archive_session"}
    if action in before:
        getattr(services, before[action])(**of(talk), reason="")
    given = {"limit": "before_seq", "value": "999"} if action == "trim" else {}
    page = admin.post(action_url(action, talk), {**given, "preview": "1"}).content.decode()
    is_asked = messages > 100 and action in ("trim", "clear", "purge")
    assert ('<input type="number" name="count"' in page) == is_asked


def test_the_reason_field_offers_the_last_five_own_reasons(admin, talk, monkeypatch):
    olga, eva = (Actor.operator(user) for user in (User.objects.get(username="olga"), make_user()))
    for number in range(7):
        for action in (services.hold_session, services.release_session):
            action(**{**of(talk), "by": olga}, reason=f"case {number}")
    services.hold_session(**{**of(talk), "by": eva}, reason="of Eva")
    refused = operator("view_session", name="otto")
    refused.get(action_url("hold", talk))
    admin.get(f"{LIST}people/")

    def offered(address):
        page = admin.get(address).content.decode()
        return [part.split('"')[0] for part in page.split('<option value="case ')[1:]]

    assert offered(action_url("purge", talk)) == ["6", "5", "4", "3", "2"]
    assert "of Eva" not in admin.get(action_url("purge", talk)).content.decode()
    monkeypatch.setattr(base, "MAX_ENTRIES", 3)
    assert offered(action_url("export", talk)) == ["6", "5"]


def test_a_refused_permission_is_no_reason(talk):
    client = operator("view_session", "hold_session")
    client.get(action_url("purge", talk))
    assert AuditEntry.objects.get().reason == "purge_history"
    assert "purge_history" not in client.get(action_url("hold", talk)).content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_an_action_from_the_list_leads_back_to_its_filters_and_position(admin, count):
    talks = [talk_of(None, key=f"talk-{n}", title=f"Talk {n}") for n in range(count)]
    here = f"{LIST}?q=talk&after=WzFd"
    chosen = {"action": "purge", "_selected_action": [talk.pk for talk in talks]}
    address = admin.post(here, chosen)["Location"]
    answer = confirm(admin, address)
    assert answer["Location"] == here
    done = {
        1: "“Talk 0” with its 4 messages removed.",
        2: "2 conversations purged. 8 messages removed.",
    }
    page = admin.get(here)
    assert notices(page) == [f"{done[count]} Undo Details"]
    undo = f"{job_url(Job.objects.get(), 'undo/')}?back={quote(here)}"
    assert (
        f'<form class="chatmemory-follow" method="post" action="{undo}">' in page.content.decode()
    )
    back = admin.post(undo)  # what its button sends
    assert back["Location"] == here
    assert [job.reason for job in Job.objects.order_by("pk")] == ["spam", "Undo: spam"]
    restored = {
        1: "4 messages of “Talk 0” restored.",
        2: "2 conversations restored. 8 messages restored.",
    }
    assert notices(admin.get(here)) == [f"{restored[count]} Details"]
    assert not Session.objects.filter(removed_at__isnull=False).exists()


def test_the_undo_in_a_message_has_the_token_of_the_browser(talk):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(make_user("root", is_staff=True, is_superuser=True))
    address = action_url("archive", talk)
    token = browser.get(address).context["csrf_token"]
    given = {"reason": "old", "count": 1, "csrfmiddlewaretoken": token}
    page = browser.post(address, given, follow=True).content.decode()
    action, sent = re.findall(
        r'<form class="chatmemory-follow" .*? action="(.*?)"><input .*? value="(.*?)">', page
    )[0]
    assert browser.post(action).status_code == 403
    assert browser.post(action, {"csrfmiddlewaretoken": sent}).status_code == 302
    assert not Session.objects.filter(archived_at__isnull=False).exists()


@pytest.mark.slow
def test_skipped_sessions_are_in_the_one_message(admin):
    talks = [talk_of(None, key=f"talk-{n}") for n in range(3)]
    services.hold_session(**of(talks[0]), reason="")
    answer = confirm(admin, action_url("purge", *talks))
    assert notices(admin.get(answer["Location"])) == [
        "2 conversations purged. 8 messages removed. "
        "1 skipped: The conversation is on hold. Undo Details"
    ]


def test_without_the_right_to_restore_the_message_offers_no_undo(talk):
    client = operator("view_session", "purge_history")
    answer = confirm(client, action_url("purge", talk))
    assert notices(client.get(answer["Location"])) == [
        "“Kettle” with its 4 messages removed. Details"
    ]


def test_a_running_job_leads_back_to_the_list(admin, monkeypatch):
    talks = [talk_of(None, key=f"talk-{n}") for n in range(2)]
    monkeypatch.setattr("chatmemory.admin.jobs.action.execute", lambda claim: None)
    address = f"{LIST}action/hold/?all=1&q=talk"
    answer = confirm(admin, address)
    assert (
        answer["Location"] == f"{job_url(Job.objects.get())}?back={quote(LIST, safe='')}%3Fq%3Dtalk"
    )
    page = admin.get(answer["Location"])
    assert f'href="{LIST}?q=talk">Back</a>' in page.content.decode()
    assert len(talks) == Job.objects.get().total


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "evil", "?evil=1"]
)
def test_no_page_leads_to_another_site(admin, talk, back):
    address = f"{action_url('hold', talk)}&back={quote(back)}"
    assert f'href="{back}' not in admin.get(address).content.decode()
    assert confirm(admin, address)["Location"] == f"{LIST}{talk.pk}/change/"
    job = job_url(Job.objects.get())
    assert f'href="{back}' not in admin.get(f"{job}?back={quote(back)}").content.decode()


def first_form(client, address, **given):
    """Return what the form of a page sends, with the time of its preview."""
    page = client.post(address, {**given, "preview": "1"})
    seen_at = page.context["summary"].seen_at
    return {**confirmation(client, address, **given), "seen_at": seen_at}


@pytest.mark.parametrize("action", ["purge", "trim", "clear", "hold", "archive", "tag", "stop"])
def test_a_second_click_shows_what_the_first_has_done(admin, talk, action):
    given = {"trim": {"limit": "keep_last", "value": "2"}, "tag": {"tag": "vip"}}.get(action, {})
    if action == "stop":
        claim = services.admit_turn(**of(talk), client_id="c", content="?", owner="tests").claim
        start_turn(claim=claim)
    address = action_url(action, talk)
    form = first_form(admin, address, **given)
    first = admin.post(address, form)
    expected = notices(admin.get(first["Location"]))
    second = admin.post(address, form)
    assert second["Location"] == first["Location"]
    assert notices(admin.get(second["Location"])) == expected
    assert Job.objects.count() == AuditEntry.objects.count() == 1


def test_another_selection_or_operator_is_no_second_click(admin, talk):
    other = talk_of(None, key="other")
    form = first_form(admin, action_url("hold", talk))
    admin.post(action_url("hold", talk), form)
    admin.post(action_url("hold", other), form)
    assert Session.objects.filter(held_at__isnull=False).count() == 2
    otto = operator(*ACTING, name="otto")
    page = otto.post(action_url("hold", talk), form)
    assert "“Kettle” stays as it is. There is nothing to change." in shown(page)
    assert Job.objects.count() == 2


@pytest.mark.slow
def test_a_second_click_on_all_that_matched_finds_nothing(admin, talk):
    services.hold_session(**of(talk), reason="")
    address = f"{LIST}action/release/?all=1&state=held"
    form = first_form(admin, address)
    admin.post(address, form)
    assert notices(admin.post(address, form, follow=True))[-1] == (
        "No conversation matches any more. Nothing was changed."
    )
    assert Job.objects.count() == 1


@pytest.mark.slow
@pytest.mark.parametrize(("action", "reverse"), [("hold", "release"), ("purge", "restore")])
def test_a_form_that_is_sent_again_after_its_undo_acts_again(admin, talk, action, reverse):
    address = action_url(action, talk)
    form = first_form(admin, address)
    admin.post(address, form)
    undo = job_url(Job.objects.get(), "undo/")
    admin.post(undo, {"reason": "a mistake"})
    assert Job.objects.filter(action=reverse).count() == 1
    admin.post(address, form)
    assert Job.objects.filter(action=action).count() == 2
    talk.refresh_from_db()
    assert talk.held_at or talk.removed_at


@pytest.mark.slow
def test_a_second_click_on_undo_shows_what_the_first_has_done(admin, talk):
    confirm(admin, action_url("hold", talk))
    undo = job_url(Job.objects.get(), f"undo/?back={LIST}")
    answers = [admin.post(undo, {"reason": "a mistake"}, follow=True) for _ in range(2)]
    assert ["released." in notices(answer)[-1] for answer in answers] == [True, True]
    assert Job.objects.count() == 2


def test_a_conversation_that_is_deleted_meanwhile_does_not_stop_the_others(admin, talk):
    gone, other = make_session("gone"), make_session("other")
    address = action_url("hold", gone, other)
    form = first_form(admin, address)
    Session.objects.filter(pk=gone.pk).delete()
    admin.post(address, {**form, "count": 1})
    other.refresh_from_db()
    assert other.held_at


def test_a_time_of_no_calendar_is_no_error(admin, talk):
    form = {"reason": "x", "count": 1, "seen_at": 2**53}
    assert admin.post(action_url("hold", talk), form).status_code == 302


def test_a_form_that_is_used_again_later_acts_on_what_is_there_now(admin, talk, monkeypatch):
    monkeypatch.setattr("chatmemory.admin.jobs.action.REPEATED_FOR", timedelta(0))
    form = first_form(admin, action_url("purge", talk))
    admin.post(action_url("purge", talk), form)
    page = admin.post(action_url("purge", talk), form)
    assert shown(page).count("“Kettle” stays as it is. The conversation is purged.") == 1
    assert page.context["errors"] == {}
    assert Job.objects.count() == 1


@pytest.mark.parametrize("name", ["stored", "streaming"])
def test_a_reply_that_ends_after_the_preview_is_one_sentence(admin, talk, name):
    claim = services.admit_turn(**of(talk), client_id="c", content="and?", owner="tests").claim
    start_turn(claim=claim)
    Turn.objects.update(partial="so f")
    form = first_form(admin, action_url("purge", talk))
    if name == "stored":
        finish_turn(
            claim=claim, message={"role": "assistant", "content": "so far"}, status="complete"
        )
        page = admin.post(action_url("purge", talk), form)
        text = "Messages to remove now: 6. Nothing was changed; confirm again."
        assert shown(page).count("Nothing was changed") == shown(page).count(text) == 1
        assert not Job.objects.exists()
    else:
        answer = admin.post(action_url("purge", talk), form)
        assert len(notices(admin.get(answer["Location"]))) == 1
        assert Turn.objects.get().status == "interrupted"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ["purge", "stop", "hold"])
def test_simultaneous_clicks_store_one_job(postgresql, action):
    talk, client = talk_of(None, title="Kettle"), operator(*ACTING)
    if action == "stop":
        claim = services.admit_turn(**of(talk), client_id="c", content="?", owner="tests").claim
        start_turn(claim=claim)
    address = action_url(action, talk)
    form = first_form(client, address)
    is_held = Event()

    def hold_until_all_wait():
        with held(talk):
            is_held.set()
            wait_for(lambda: waiting_connections() == 3, "a click does not wait for the lock")

    def click():
        is_held.wait()
        other = Client()
        other.cookies = client.cookies
        return other.post(address, form)["Location"]

    _, *found = concurrently(hold_until_all_wait, click, click, click)
    job = Job.objects.get()
    assert (job.status, job.done, job.skipped) == ("complete", 1, {})
    assert AuditEntry.objects.count() == 1
    places = (f"{LIST}{talk.pk}/change/", job_url(job))
    assert all(place.startswith(places) for place in found)


def waiting_connections():
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute(WAITING["postgresql"])
        return len(cursor.fetchall())


@pytest.mark.parametrize("name", ["one", "several"])
def test_a_confirmation_reads_the_reasons_in_one_statement(admin, talk, name):
    chosen = [talk] if name == "one" else [talk, talk_of(None, key="other")]
    with CaptureQueriesContext(connection) as queries:
        admin.get(action_url("hold", *chosen))
    found = [
        q["sql"] for q in queries if "chatmemory_auditentry" in q["sql"] and "reason" in q["sql"]
    ]
    assert len(found) == 1
    assert "LIMIT 1000" in found[0]


def test_the_number_of_messages_is_grouped(admin, talk):
    Session.objects.update(last_seq=F("last_seq") + 1_996)
    assert "Remove all 2,000 messages of “Kettle”?" in shown(admin.get(action_url("clear", talk)))


def test_an_undo_of_several_states_what_was_done(admin):
    talks = [talk_of(None, key=f"talk-{n}") for n in range(2)]
    confirm(admin, action_url("hold", *talks))
    page = shown(admin.get(job_url(Job.objects.get(), "undo/")))
    assert "2 conversations put on hold. Release: Allows removals again" in page
    assert "Undo in 2 conversations" in page


def test_an_export_of_one_session_is_one_question(admin, talk):
    page = admin.get(action_url("export", talk))
    assert "Download “Kettle” with its 4 messages as a file?" in shown(page)
    assert "chatmemory-scroll" not in page.content.decode()


def focused(answer):
    """Return the names of the fields that the page focuses."""
    return re.findall(r'name="(\w+)"[^>]* autofocus', answer.content.decode())


@pytest.mark.parametrize(
    ("name", "query", "field"),
    [("purge", "", "reason"), ("trim", "", "value"), ("trim", "&before_seq=3", "reason")],
)
def test_what_is_typed_first_has_the_focus(admin, talk, name, query, field):
    assert focused(admin.get(action_url(name, talk) + query)) == [field]


def test_a_wrong_field_has_the_focus_after_an_error(admin, talk):
    page = admin.post(action_url("trim", talk), {"limit": "before", "value": "x", "reason": "y"})
    assert focused(page) == ["value"]
    given = {"limit": "keep_last", "value": 1, "preview": 1}
    assert focused(admin.post(action_url("trim", talk), given)) == ["reason"]


def test_no_field_below_a_table_has_the_focus(admin, talk):
    assert focused(admin.get(action_url("purge", talk, talk_of(None, key="b")))) == []
