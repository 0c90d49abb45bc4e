"""The views, the chips and the rows of the list of sessions."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib import admin as django_admin
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from chatmemory import services
from chatmemory.admin import SessionAdmin
from chatmemory.admin.choices import TextFilter
from chatmemory.admin.sessions import presets
from chatmemory.admin.sessions.filters import FILTERS
from chatmemory.admin.sessions.presets import PRESETS
from chatmemory.models import Feedback, Session, SessionTag, Turn
from tests.admin.screens import NARROW, WIDE, Screens
from tests.admin.test_session_list import many  # noqa: F401  # a fixture
from tests.admin.visits import LIST, operator, talk_of
from tests.factories import BY, make_session, make_user

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def admin():
    return operator("view_session", "view_transcript", "hold_session")


def views(client, **query):
    """Return the count of each view, and the name of the current one."""
    page = client.get(LIST, query).content.decode()
    [nav] = re.findall('<nav class="chatmemory-views".*?</nav>', page, re.DOTALL)
    found = re.findall(r"<a ([^>]*)>([^<]*?)(?: <b>(.*?)</b>)?</a>", nav)
    current = [label for attributes, label, _ in found if "aria-current" in attributes]
    return {label: count for _, label, count in found}, current


def keys(client, **query):
    return {session.key for session in client.get(LIST, query).context["cl"].result_list}


def chips(client, **query):
    """Return the name, text and address of each chip."""
    page = client.get(LIST, query).content.decode()
    form = r'<a class="chatmemory-chip" href="([^"]*)" aria-label="([^"]*)">(.*?) <span'
    return [(name, text, url) for url, name, text in re.findall(form, page)]


@pytest.fixture
def one_of_each():
    """Store a session for each view."""
    ann = make_user("ann")
    for key in ("failed", "rated", "held", "archived", "purged", "running"):
        talk_of(ann, key=key)
    by_key = {session.key: session for session in Session.objects.all()}
    turn = {"client_id": "c1", "epoch": 1, "user_seq": 1}
    Turn.objects.create(session=by_key["failed"], status="failed", ended_at=now(), **turn)
    Turn.objects.create(session=by_key["running"], status="running", **turn)
    Session.objects.filter(key="running").update(running="c1")
    Session.objects.filter(key="held").update(held_at=now())
    Session.objects.filter(key="archived").update(archived_at=now())
    Feedback.objects.create(session=by_key["rated"], turn="c1", user_seq=1, value=-1)
    services.purge_session(session_key="purged", scope=by_key["purged"].scope, by=BY, reason="x")
    make_session("empty", owner=ann)


@pytest.mark.slow
@pytest.mark.database
def test_each_view_counts_what_its_link_lists(admin, one_of_each):
    found, current = views(admin)
    assert found == {
        "All": "5",
        "Replying now": "1",
        "Failed 24 h": "1",
        "Failed 7 days": "1",
        "Rated bad 7 days": "1",
        "On hold": "1",
        "Archived": "1",
        "Purged": "1",
        "Empty": "1",
    }
    assert current == ["All"]
    for label, query in PRESETS:
        given = dict([query.split("=")]) if query else {}
        assert len(keys(admin, **given)) == int(found[label]), label
        assert views(admin, **given)[1] == [label]
    assert views(admin, q="failed")[1] == []


def test_the_page_about_the_console_names_each_view():
    page = " ".join((ROOT / "docs/howto/operators.md").read_text().split())
    names = ", ".join(f"*{label}*" for label, _ in PRESETS)
    assert f": {names}." in page


@pytest.mark.slow
@pytest.mark.database
def test_a_count_ends_at_its_limit(admin, monkeypatch):
    monkeypatch.setattr(presets, "MAX_COUNTED", 2)
    for key in ("a", "b"):
        talk_of(None, key=key)
    assert views(admin)[0]["All"] == "2"
    talk_of(None, key="c")
    assert views(admin)[0]["All"] == "2+"


def test_views_without_a_session_have_no_count_above_zero(admin):
    assert set(views(admin)[0].values()) == {"0"}


@pytest.mark.slow
def test_all_views_are_counted_in_one_statement(admin, one_of_each):
    with CaptureQueriesContext(connection) as queries:
        admin.get(LIST)
    assert len([q for q in queries if "COUNT(*)" in q["sql"] and ") found" in q["sql"]]) == 1


class OfAnn(SessionAdmin):
    """Shows an operator the sessions of one user."""

    def get_queryset(self, request):
        return super().get_queryset(request).filter(owner__username="ann")


class ByRow(SessionAdmin):
    """Decides about each session."""

    list_filter = ("scope",)

    def has_view_permission(self, request, obj=None):
        return super().has_view_permission(request, obj) and (obj is None or obj.key == "held")


@pytest.fixture
def replaced(monkeypatch):
    """Return a function that replaces the ModelAdmin of sessions."""

    def replace(cls):
        monkeypatch.setattr(django_admin.site.get_model_admin(Session), "__class__", cls)

    return replace


@pytest.mark.slow
def test_a_scoped_operator_counts_only_their_own(admin, one_of_each, replaced):
    other = talk_of(make_user("bob"), key="other")
    Session.objects.filter(pk=other.pk).update(held_at=now())
    assert views(admin)[0]["On hold"] == "2"
    replaced(OfAnn)
    assert views(admin)[0]["On hold"] == "1"
    assert views(admin)[0]["All"] == "5"


def test_a_host_that_decides_by_row_has_views_without_counts(admin, one_of_each, replaced):
    replaced(type("Rows", (ByRow,), {"list_filter": SessionAdmin.list_filter}))
    assert set(views(admin)[0].values()) == {""}
    assert keys(admin) == {"held"}
    Session.objects.filter(key="held").update(held_at=None, key="gone")
    assert "There is no conversation that you may see." in admin.get(LIST).content.decode()


def test_a_host_without_the_filters_has_no_views(admin, one_of_each, replaced):
    replaced(type("Plain", (SessionAdmin,), {"list_filter": ("scope",)}))
    page = admin.get(LIST).content.decode()
    assert "chatmemory-views" not in page
    assert "failed" in page


@pytest.mark.slow
def test_unused_sessions_are_listed_only_by_a_search_or_a_filter(admin):
    talk_of(None, key="used")
    make_session("unused")
    make_session("running", running="c1")
    make_session("waiting", waiting=1)
    services.clear_session(session_key="used", scope="server", by=BY, reason="x")
    assert keys(admin) == keys(admin, tag="") == {"used", "running", "waiting"}
    assert "unused" in keys(admin, q="un")
    assert "unused" in keys(admin, active="today")
    assert "unused" in keys(admin, active="never")


@pytest.mark.slow
def test_all_that_match_are_those_that_the_list_shows(admin):
    for key in ("a", "b"):
        talk_of(None, key=key)
    make_session("unused")
    for query in ("", "active=never", "q=un", "state=held"):
        given = dict([query.split("=")]) if query else {}
        answer = admin.get(f"{LIST}action/hold/", {"all": "1", **given})
        selected = answer.context.get("selection") if answer.status_code == 200 else None
        found = {session.key for session in selected.sessions} if selected else set()
        assert found == keys(admin, **given), query


@pytest.mark.slow
def test_each_active_filter_is_a_chip_that_removes_it(admin):
    SessionTag.objects.create(session=make_session("s"), tag="a\u202e<b>")
    query = {"state": "held", "tag": "a\u202e<b>", "active": "week", "q": "s"}
    found = chips(admin, **query)
    assert [text for _, text, _ in found] == [
        "state: On hold",
        "tag: a⟦U+202E⟧&lt;b&gt;",
        "last message: Past 7 days",
    ]
    assert found[0][0] == "Remove the filter: state: On hold"
    assert "state=" not in found[0][2]
    assert "active=week" in found[0][2]
    assert "q=s" in found[0][2]
    assert chips(admin, state="unknown", tag="") == []


@pytest.mark.slow
def test_a_row_shows_tags_model_tokens_and_feedback(admin):
    talk = talk_of(make_user("ann"), key="order-7", title="A kettle", tokens=18_240)
    turn = {"client_id": "c1", "epoch": 1, "user_seq": 1}
    Turn.objects.create(session=talk, status="complete", model="gpt-5", **turn)
    Session.objects.update(tokens=18_240)
    SessionTag.objects.create(session=talk, tag="billing")
    for number, value in enumerate((1, 1, -1)):
        Feedback.objects.create(session=talk, turn=f"c{number}", user_seq=number, value=value)
    page = admin.get(LIST).content.decode()
    [row] = re.findall('<th class="field-name">.*?</th>', page, re.DOTALL)
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", row)).strip()
    assert text == "A kettle billing 4 messages gpt-5 18,240 tokens 👍 2 👎 1"
    assert 'aria-label="2 rated good"' in row
    assert 'aria-label="1 rated bad"' in row
    assert "order-7" not in row


@pytest.mark.slow
def test_without_actions_or_rows_the_list_has_no_bar_of_actions(admin):
    reader = operator("view_session", name="reader")
    assert 'name="action"' not in admin.get(LIST).content.decode()
    talk_of(None)
    assert 'name="action"' in admin.get(LIST).content.decode()
    assert 'name="action"' not in reader.get(LIST).content.decode()
    assert "No conversation matches." in reader.get(LIST, {"q": "zz"}).content.decode()


INDEXES = (
    "chatmemory_turn_live",
    "chatmemory_turn_problem",
    "chatmemory_feedback_recent",
    "chatmemory_session_held",
    "chatmemory_session_archived",
    "chatmemory_session_removed",
    "chatmemory_session_pkey",
    "last_active_day",
)


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="only for PostgreSQL")
def test_each_count_has_an_index(admin, many):  # noqa: F811  # the fixture
    with CaptureQueriesContext(connection) as queries:
        admin.get(LIST)
    [counts] = [q["sql"] for q in queries if ") found" in q["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {counts}")
        [(plan,)] = cursor.fetchall()
    text = plan if isinstance(plan, str) else json.dumps(plan)
    assert [name for name in INDEXES if name not in text] == []
    assert "Seq Scan" not in text


@pytest.fixture
def long_names(transactional_db):
    """Store sessions with titles, tags, models and users that are longer than their columns."""
    name = "w" * 60
    for number, title in enumerate(("n" * 200, "a word " * 28, "Hi")):
        talk = talk_of(make_user(f"{name}{number}"), key=f"s{number}", title=title)
        of = {"session_key": talk.key, "scope": talk.scope, "by": BY}
        for tag in range(5):
            services.tag_session(**of, tag=f"{tag}{name[:40]}", reason="x")
        columns = {"client_id": "c1", "epoch": 1, "user_seq": 1, "model": name}
        ended_at = now() - timedelta(days=2)
        Turn.objects.create(session=talk, status="failed", ended_at=ended_at, **columns)
        Feedback.objects.create(session=talk, turn="c1", user_seq=1, value=1)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_rows_are_low_and_fit_and_the_filters_fold(launch, chromium, live_server, long_names):
    client = operator("view_session", "view_transcript", "hold_session", name="wide")
    screens = Screens(launch(chromium), live_server.url, client.cookies["sessionid"].value)
    page = screens.open("list", LIST)
    heights = "[...document.querySelectorAll('#result_list tbody tr')].map((r) => r.offsetHeight)"
    assert page.locator("#nav-sidebar").bounding_box()["width"] > 200, "open"
    assert max(page.evaluate(heights)) <= 64
    table, content = (page.locator(one).bounding_box() for one in ("#result_list", "#content"))
    assert table["width"] > content["width"] * 0.9
    screens.check_layout()
    assert not page.get_by_role("link", name="On hold", exact=True).is_visible()
    page.locator("summary", has_text="Filters").click()
    assert page.get_by_role("link", name="On hold", exact=True).is_visible()
    screens.check_access()
    page.get_by_role("link", name="Failed in the last 7 days").click()
    page.get_by_role("link", name="Remove the filter: turns: Failed in the last 7 days").click()
    assert page.url.endswith("?")
    for size in (NARROW, WIDE):
        page.set_viewport_size(size)
        screens.check_layout()
        for cell in (".field-name", ".field-person", ".field-last_message"):
            assert page.locator(cell).first.is_visible()
    assert screens.problems == []


class RangeFilter(TextFilter):
    """A filter of a host, whose choices have keys of its own."""

    title = "key"
    parameter_name = "key_from"

    def condition(self, text):
        return Q(key__gte=text)

    def choices(self, changelist):
        yield {"from": self.value()}


@pytest.mark.django_db
def test_a_filter_of_the_host_needs_no_choice_that_is_selected(admin, monkeypatch):
    make_session("a")
    make_session("b")
    monkeypatch.setattr(SessionAdmin, "list_filter", (*FILTERS, RangeFilter))
    assert keys(admin, key_from="b") == {"b"}
