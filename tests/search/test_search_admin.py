"""Operators search words in messages: by POST, with a permission, a reason and an audit entry."""

from __future__ import annotations

import re
import sys
from itertools import product
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Permission
from django.contrib.sessions.models import Session as DjangoSession
from django.core import signing
from django.core.signals import got_request_exception
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from django.views.debug import ExceptionReporter, SafeExceptionReporterFilter

from chatmemory import services
from chatmemory.models import AuditEntry, Reading
from chatmemory.search import searching
from chatmemory.search.admin import page, tokens
from chatmemory.search.audit import query_hashes
from chatmemory.services import user_scope
from chatmemory.services.audit.seals import verify_audit
from tests.admin.scene import make_scene
from tests.admin.screens import NARROW, WIDE, Screens
from tests.admin.visits import LIST, notices, operator, shown, talk_of
from tests.factories import BY, make_user
from tests.impersonators_for_tests import HIJACK

pytestmark = [pytest.mark.django_db, pytest.mark.database]

PAGE = "/admin/chatmemory_search/searchblock/"
RIGHTS = ("view_session", "view_transcript", "search_content")
WORDS = "green Kettle"


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def talk(ann):
    texts = ("My kettle broke.", "Which kettle?", "The green one.", "A new kettle is on its way.")
    return talk_of(ann, *texts, title="Kettle")


@pytest.fixture
def other(ann):
    return talk_of(make_user("bob"), "I sold a kettle.", "Thank you.", key="other")


def of(user):
    """Return the filter of the list by a user."""
    return urlencode({"owner_is": user_scope(user)})


def search(client, filters, **given):
    data = {"words": WORDS, "mode": "words", "role": "", "reason": "a complaint", **given}
    return client.post(f"{PAGE}?{filters}", data)


def found(answer):
    """Return the seqs of the hits that a page shows, by the names of their conversations."""
    assert answer.status_code == 200
    return [(hit.name, hit.seq) for hit in answer.context["found"]]


def entries():
    return AuditEntry.objects.filter(action="search")


def test_words_are_found_in_the_conversations_of_a_person(talk, other, ann):
    answer = search(operator(*RIGHTS), of(ann))
    assert {seq for name, seq in found(answer) if name == "Kettle"} == {1, 2, 3, 4}
    assert len(found(answer)) == 4
    text = shown(answer)
    assert "4 messages found, 1 conversation searched." in text
    assert "My kettle broke." in text
    assert "<mark>kettle</mark>" in answer.text
    assert "sold" not in text


@pytest.mark.parametrize(
    ("given", "seqs"),
    [
        ({"words": "green kettle", "role": "assistant"}, {2, 4}),
        ({"words": "ket", "mode": "prefix"}, {1, 2, 4}),
        ({"words": "new kettle", "mode": "phrase"}, {4}),
        ({"words": "elephant"}, set()),
    ],
    ids=["role", "prefix", "phrase", "none"],
)
def test_mode_and_role_select_the_messages(talk, ann, given, seqs):
    answer = search(operator(*RIGHTS), of(ann), **given)
    assert {seq for _name, seq in found(answer)} == seqs


@pytest.mark.slow
def test_a_filter_selects_the_conversations_of_several_people(talk, other):
    services.tag_session(session_key="talk", scope=talk.scope, by=BY, tag="vip", reason="")
    client = operator(*RIGHTS)
    assert {name for name, _seq in found(search(client, "tag=vip"))} == {"Kettle"}
    answer = search(client, "active=today")
    assert {name for name, _seq in found(answer)} == {"Kettle", "I sold a kettle."}
    assert "last message: Today" in shown(answer)
    assert "2 conversations searched" in shown(answer)
    assert {hit.person.partition(">")[2] for hit in answer.context["found"]} == {
        "ann</a>",
        "bob</a>",
    }


@pytest.mark.parametrize(
    "filters",
    ["", "state=", "state=nonsense", "length=50", "q=+"],
    ids=["none", "empty", "unknown", "not-alone", "blank"],
)
def test_without_a_person_or_a_filter_nothing_is_searched(talk, filters):
    client = operator(*RIGHTS)
    for answer in (client.get(f"{PAGE}?{filters}"), search(client, filters)):
        assert "Choose a person or a filter first." in shown(answer)
        assert found(answer) == []
    assert not entries().exists()


@pytest.mark.parametrize("missing", [*RIGHTS, "all"])
@pytest.mark.parametrize("method", ["get", "post"])
def test_each_permission_is_required(talk, ann, missing, method):
    client = operator(*(set(RIGHTS) - {missing} if missing != "all" else ()))
    data = {"words": WORDS, "mode": "words", "reason": "x"}
    answer = getattr(client, method)(f"{PAGE}?{of(ann)}", data if method == "post" else None)
    assert answer.status_code == 403
    assert AuditEntry.objects.get().action == "refused"
    assert AuditEntry.objects.get().reason == (RIGHTS[0] if missing == "all" else missing)


def test_a_visitor_of_the_site_reaches_no_search(client, talk, ann):
    client.force_login(ann)
    assert search(client, of(ann)).status_code == 302
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    "given",
    [{"reason": ""}, {"reason": "  "}, {"reason": "a\x1bb"}, {"words": ""}, {"words": "?!"}],
    ids=["no-reason", "blank", "control", "no-words", "no-letters"],
)
def test_a_search_needs_a_reason_and_words(talk, ann, given):
    answer = search(operator(*RIGHTS), of(ann), **given)
    assert found(answer) == []
    (field,) = answer.context["errors"]
    assert field in given
    assert not AuditEntry.objects.exists()


def test_too_many_words_are_refused(talk, ann):
    answer = search(operator(*RIGHTS), of(ann), words="a" * (searching.MAX_QUERY_CHARS + 1))
    assert [*answer.context["errors"]] == ["words"]


def test_the_audit_has_counts_codes_and_a_hash(talk, ann):
    client = operator(*RIGHTS)
    search(client, f"{of(ann)}&active=week&from=2020-01-31&tag=&q=Ket")
    entry = entries().get()
    assert (entry.actor_label, entry.reason, entry.session_pk) == ("olga", "a complaint", None)
    assert entry.counts == {
        "filters": "q, owner_is, active=week, from=2020-01-31",
        "mode": "words",
        "role": "",
        "conversations": 1,
        "hits": 4,
        "query_hash": query_hashes(" GREEN  kettle ")[0],
    }
    assert [*verify_audit()] == []
    auditor = operator("view_audit", name="audit")
    page = shown(auditor.get("/admin/chatmemory/auditentry/", {"person": user_scope(ann)}))
    assert "Words searched" in page


def test_the_hash_is_none_of_a_key_and_depends_on_the_words(settings):
    hashes = query_hashes("kettle")
    assert hashes != query_hashes("kettles")
    settings.CHATMEMORY = {"AUDIT_KEY": "another"}
    assert hashes != query_hashes("kettle")


def test_a_value_that_is_no_code_is_not_in_the_audit(talk):
    search(operator(*RIGHTS), "tag=secret&state=classified&until=nonsense")
    assert entries().get().counts["filters"] == "state, tag, until"


def test_the_words_are_in_no_row_address_log_or_cookie(talk, ann, caplog, settings):
    caplog.set_level("DEBUG")
    client = operator(*RIGHTS)
    with CaptureQueriesContext(connection) as queries:
        answer = search(client, of(ann), words="kettle zanzibar")
        answer = client.post(f"{PAGE}?{of(ann)}", {"token": token_of(answer, ann, client)})
    assert found(answer) == []
    assert "zanzibar" in answer.text
    logged = "\n".join(record.getMessage() for record in caplog.records)
    statements = "\n".join(query["sql"] for query in queries)
    stored = [*AuditEntry.objects.values_list(), *DjangoSession.objects.all()]
    cookies = str(client.cookies)
    sessions = str([one.get_decoded() for one in DjangoSession.objects.all()])
    links = re.findall(r'(?:href|action)="([^"]*)"', answer.text)
    for text in (logged, statements, str(stored), cookies, sessions, str(links)):
        assert "zanzibar" not in text.lower()
    assert PAGE in str(answer.request)


def test_an_error_report_has_no_words(talk, ann):
    request = search(operator(*RIGHTS), of(ann), words="zanzibar").wsgi_request
    reported = SafeExceptionReporterFilter().get_post_parameters(request)
    assert "zanzibar" not in str(reported)
    assert reported["reason"] == "a complaint"


def test_an_error_report_has_no_words_in_its_variables(talk, ann, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError

    def report(request, **_):
        reports.append(ExceptionReporter(request, *sys.exc_info()).get_traceback_html())

    reports: list[str] = []
    words = "gubmuh"[::-1]  # the report has the lines of this file
    monkeypatch.setattr(searching.Search, "page", fail)
    client = operator(*RIGHTS)
    client.raise_request_exception = False
    got_request_exception.connect(report)
    try:
        assert search(client, of(ann), words=words).status_code == 500
    finally:
        got_request_exception.disconnect(report)
    (text,) = reports
    assert "search_sessions" in text
    assert words not in text


def token_of(answer, user, client):
    """Return a token for the rest of a search, as the page would have it."""
    pk = int(client.session["_auth_user_id"])
    by = services.Actor.operator(type(user).objects.get(pk=pk))
    given = answer.context["form"].form.cleaned_data
    more = tokens.Continuation(**{n: given[n] for n in page.FIELDS}, cursor="0.0.0")
    return tokens.write_token(more, by=by, filters=answer.context["selection"].filters)


def test_a_get_with_words_searches_nothing(talk, ann):
    answer = operator(*RIGHTS).get(f"{PAGE}?{of(ann)}&words=kettle&reason=x")
    assert answer.status_code in (302, 404) or found(answer) == []
    assert not entries().exists()


def test_each_shown_message_is_recorded_as_read(talk, ann):
    search(operator(*RIGHTS), of(ann), words="kettle")
    assert AuditEntry.objects.get(action="read").session_pk == talk.pk
    assert Reading.objects.get().ranges == [[1, 2], [4, 4]]


def test_a_hit_leads_to_its_row_in_the_conversation(talk, ann):
    client = operator(*RIGHTS)
    (hit,) = search(client, of(ann), words="green").context["found"]
    conversation = client.get(hit.url)
    assert conversation.status_code == 200
    assert hit.url.endswith("#m3")
    assert f"/{talk.pk}/change/?seq=3&" in hit.url
    assert 'id="m3"' in conversation.text


@pytest.mark.parametrize("remove", ["purge_session", "clear_session", "redact_message"])
def test_removed_messages_are_not_found(talk, ann, remove):
    more = {"seq": 3} if remove == "redact_message" else {}
    getattr(services, remove)(session_key="talk", scope=talk.scope, by=BY, reason="", **more)
    client = operator(*RIGHTS)
    assert found(search(client, of(ann), words="green")) == []
    purged = search(client, f"{of(ann)}&state=purged", words="green")
    assert found(purged) == []
    assert "0 conversations searched." in shown(purged)


def test_masked_texts_are_not_shown_but_where_they_are(talk, ann, settings):
    settings.CHATMEMORY = {"TRANSCRIPTS": "masked"}
    client = operator(*RIGHTS, "view_unmasked")
    answer = search(client, of(ann), words="kettle")
    assert [hit.seq for hit in answer.context["found"]] != []
    assert "The words are masked" in shown(answer)
    for text in ("broke", "Which", "<mark>", "Kettle"):
        assert text not in answer.text
    assert not Reading.objects.exists()
    client.post(f"{LIST}{talk.pk}/reveal/", {"reason": "x"})
    assert "broke" in search(client, of(ann), words="kettle").text
    assert Reading.objects.exists()


@pytest.mark.slow
def test_off_forbids_a_search(talk, ann, settings):
    settings.CHATMEMORY = {"TRANSCRIPTS": "off"}
    client = operator(*RIGHTS)
    assert client.get(f"{PAGE}?{of(ann)}").status_code == 403
    assert search(client, of(ann)).status_code == 403
    assert PAGE not in client.get(f"{LIST}?{of(ann)}").text
    assert not entries().exists()


@pytest.fixture
def long_talk(ann, monkeypatch):
    monkeypatch.setattr(page, "PAGE_HITS", 2)
    return talk_of(ann, *(f"kettle {n}" for n in range(5)), title="Kettle")


def more(client, answer, filters):
    return client.post(f"{PAGE}?{filters}", {"token": answer.context["token"]})


@pytest.mark.slow
def test_pages_follow_each_other_and_each_is_recorded(long_talk, ann):
    client, filters = operator(*RIGHTS), of(ann)
    seen, answer = [], search(client, filters, words="kettle")
    while answer.context["token"]:
        seen += found(answer)
        answer = more(client, answer, filters)
    seen += found(answer)
    assert sorted(seq for _name, seq in seen) == [1, 2, 3, 4, 5]
    assert [entry.counts["hits"] for entry in entries().order_by("pk")] == [2, 2, 1]
    assert {entry.reason for entry in entries()} == {"a complaint"}
    assert 'value="kettle"' in answer.text


def test_older_conversations_are_searched_on_request(talk, ann, monkeypatch):
    newer = talk_of(ann, "Another kettle.", "Yes.", key="newer", title="Newer")
    monkeypatch.setattr("chatmemory.search.reading.MAX_SESSIONS", 1)
    client = operator(*RIGHTS)
    answer = search(client, of(ann), words="kettle")
    assert {name for name, _seq in found(answer)} == {newer.title}
    assert "older ones have not been searched yet" in shown(answer)
    assert "Search older conversations" in shown(answer)
    answer = more(client, answer, of(ann))
    assert {name for name, _seq in found(answer)} == {talk.title}
    assert answer.context["token"] == ""


EXPIRED = "The search has ended"
INVALID = "This is not the continuation of a search of yours with these filters."


def test_a_token_ends(long_talk, ann, monkeypatch):
    client = operator(*RIGHTS)
    answer = search(client, of(ann), words="kettle")
    monkeypatch.setattr(tokens, "TOKEN_SECONDS", -1)
    refused = more(client, answer, of(ann))
    assert EXPIRED in shown(refused)
    assert found(refused) == []
    assert entries().count() == 1


@pytest.mark.parametrize("change", ["operator", "filters", "token", "salt"])
def test_a_token_is_of_one_operator_and_filters(long_talk, ann, change):
    client, filters = operator(*RIGHTS), of(ann)
    answer = search(client, filters, words="kettle")
    token = answer.context["token"]
    if change == "operator":
        client = operator(*RIGHTS, name="otto")
    elif change == "filters":
        filters = "active=today"
    elif change == "token":
        token = f"x{token[1:]}"
    else:
        token = signing.dumps({"by": "1", "filters": filters}, compress=True)
    refused = client.post(f"{PAGE}?{filters}", {"token": token})
    assert INVALID in shown(refused)
    assert found(refused) == []
    assert entries().count() == 1


def test_a_token_is_of_no_use_without_the_permission(long_talk, ann):
    client = operator(*RIGHTS)
    answer = search(client, of(ann), words="kettle")
    Permission.objects.get(codename="search_content").user_set.clear()
    assert more(client, answer, of(ann)).status_code == 403


@pytest.mark.slow
def test_the_list_and_the_person_lead_to_the_search(talk, ann):
    client = operator(*RIGHTS)
    assert PAGE not in client.get(LIST).text
    assert f"{PAGE}?owner_is=ann" in client.get(f"{LIST}?owner_is=ann").text
    assert f"{PAGE}?q=Kettle" in client.get(f"{LIST}?q=Kettle").text
    person = client.get(f"{LIST}person/", {"scope": talk.scope}).text
    assert f"{PAGE}?{of(ann)}" in person
    reader = operator("view_session", "view_transcript", name="reader")
    for address in (f"{LIST}?q=Kettle", f"{LIST}person/?scope={talk.scope}"):
        assert PAGE not in reader.get(address).text


def test_a_person_without_active_conversations_has_no_search(talk, ann):
    services.purge_session(session_key="talk", scope=talk.scope, by=BY, reason="")
    assert PAGE not in operator(*RIGHTS).get(f"{LIST}person/", {"scope": talk.scope}).text


def test_the_page_shows_the_filters_in_words_and_the_person(talk, ann):
    text = shown(operator(*RIGHTS).get(f"{PAGE}?{of(ann)}&state=held&q=Ket"))
    for part in (f"ann {talk.scope}", "Search: Ket", "state: On hold", "0 conversations"):
        assert part in text


@pytest.fixture
def scoped(settings):
    settings.ROOT_URLCONF = "tests.scoped_admin"


@pytest.mark.slow
def test_a_scoped_admin_finds_only_its_conversations(talk, other, scoped):
    answer = search(operator(*RIGHTS), "active=today", words="kettle")
    assert {name for name, _seq in found(answer)} == {"Kettle"}
    assert "1 conversation searched" in shown(answer)
    assert found(search(operator(*RIGHTS, name="b"), f"owner_is={other.scope}")) == []


def test_a_username_discloses_nothing_of_a_person_out_of_reach(talk, other, scoped):
    client = operator(*RIGHTS)
    assert f"ann {talk.scope}" in shown(client.get(f"{PAGE}?owner_is=ann"))
    pages = [shown(client.get(f"{PAGE}?owner_is={name}")) for name in ("bob", "bib")]
    assert pages[0] == pages[1].replace("bib", "bob")


def test_a_host_that_decides_for_each_conversation_is_asked(talk, other, scoped, monkeypatch):
    from tests.scoped_admin import ScopedSessionAdmin

    monkeypatch.delattr(ScopedSessionAdmin, "get_queryset")
    monkeypatch.setattr(
        ScopedSessionAdmin,
        "has_view_transcript_permission",
        lambda self, request, obj=None: obj is None or obj.pk == other.pk,
    )
    client = operator(*RIGHTS)
    answer = search(client, "active=today", words="kettle")
    assert {hit.seq for hit in answer.context["found"]} == {1}
    assert entries().get().counts["conversations"] == 1
    monkeypatch.setattr("chatmemory.admin.jobs.selection.MAX_NAMED", 1)
    refused = search(client, "active=today", words="kettle")
    assert "This site decides for each conversation" in shown(refused)
    assert entries().count() == 1


def test_a_search_in_the_name_of_another_person_is_refused(talk, ann, settings):
    settings.CHATMEMORY = {"IMPERSONATOR": "tests.impersonators_for_tests.of_hijack"}
    client = operator(*RIGHTS)
    assert len(found(search(client, of(ann)))) == 4
    session = client.session
    session[HIJACK] = [str(make_user("real", is_staff=True).pk)]
    session.save()
    answer = search(client, of(ann))
    assert found(answer) == []
    assert "You view this as another person" in shown(answer)
    assert entries().count() == 1


def test_a_search_waits_for_another_one_of_the_operator(talk, ann, monkeypatch):
    monkeypatch.setattr(searching, "MAX_SECONDS", 0.01)
    client = operator(*RIGHTS)
    pk = client.session["_auth_user_id"]
    with searching._turn_of(f"operator:{pk}"):
        answer = search(client, of(ann))
    assert "Another search of yours is still running." in shown(answer)
    assert not entries().exists()


def test_the_page_is_translated(talk, ann):
    client = operator(*RIGHTS)
    with translation.override("de"):
        client.cookies["django_language"] = "de"
        text = shown(search(client, of(ann), words="kettle"))
    for part in ("Wörter", "Grund", "3 Nachrichten gefunden", "1 Gespräch durchsucht"):
        assert part in text
    assert notices(client.get(f"{PAGE}?{of(ann)}")) == []


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_the_hits_fit_and_are_accessible_under_a_strict_policy(
    launch, chromium, live_server, settings
):
    scene = make_scene()
    screens = Screens(launch(chromium), live_server.url, scene.cookie)
    for mode in ("normal", "masked"):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
        tab = screens.open(mode, f"{PAGE}?{of(scene.ann)}")
        tab.fill("#id_words", "order key")
        tab.fill("#id_reason", "a complaint")
        tab.press("#id_reason", "Enter")
        hits = tab.locator(".chatmemory-hits li")
        hits.first.wait_for()
        assert (tab.locator("mark").count() > 0) == (mode == "normal")
        for scheme, size in product(("light", "dark"), (WIDE, NARROW)):
            tab.emulate_media(color_scheme=scheme)
            tab.set_viewport_size(size)
            screens.check_layout()
            screens.check_access()
        with tab.expect_popup() as opened:
            hits.first.locator("a").first.click()
        conversation = opened.value
        conversation.wait_for_url(re.compile("#m[0-9]+$"))
        conversation.locator(f"li{conversation.url[conversation.url.index('#') :]}").wait_for()
        assert screens.page.url.endswith(of(scene.ann))
    assert screens.problems == [], "\n".join(screens.problems)
