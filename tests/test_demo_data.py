"""The example data of the demo: what is in them, and what the console shows of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from random import Random

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Max, Model
from django.test import TestCase
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import reverse
from django.utils import timezone

from chatmemory import services
from chatmemory.admin.health.facts import facts
from chatmemory.admin.sections import sections
from chatmemory.admin.sessions.presets import PRESETS
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    Feedback,
    Job,
    Message,
    Session,
    SessionNote,
    SessionTag,
    Turn,
    installed_models,
)
from chatmemory.services import Actor
from chatmemory.services.health.queue import read_queue
from chatmemory.services.health.state import read_health
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.maintenance.due import read_maintenance
from chatmemory.statistics.figures import read_figures
from project.demo_data import conversations
from project.demo_data.conversations import FAILURES, LONG, NAMES, write_conversations
from project.demo_data.example_data import is_made, make_example_data
from project.demo_data.rows import Person
from project.demo_data.texts import TOPICS, Language
from project.management.commands import demo

MAX_STATEMENTS = 6_400
"""About 5,900 are needed on SQLite, 2,400 of them to index each conversation for the search."""

EMPTY = re.compile("There are no figures|There is no conversation|Nothing in this period")
"""What a page of the console has instead of its content."""

CONSOLE = "admin:chatmemory_session_changelist"


def test_each_text_can_be_written_in_each_language():
    for code in NAMES:
        language, rng = Language(code), Random(1)  # noqa: S311  # no secret
        for topic in TOPICS * 20:
            for exchange in language.dialogue(topic, rng).exchanges:
                assert exchange.asked
                assert "{" not in exchange.asked + exchange.reply


@pytest.mark.slow
@pytest.mark.parametrize("hours", [0, 7, 60, 101])
def test_the_times_are_in_order_and_in_the_past_whenever_the_demo_starts(hours):
    now = datetime(2026, 3, 1, 0, 20, tzinfo=UTC) + timedelta(hours=hours)
    people = [
        Person(scope=f"user:{pk}", owner_id=pk, language=language)
        for pk, language in enumerate(NAMES, 1)
    ]
    rng = Random(3)  # noqa: S311  # no secret
    *written, live = write_conversations(people, now, rng)
    assert live.session.running
    for one in written:
        times = [row.created_at for row in one.messages]
        assert times == sorted(times)
        times += [one.session.created_at, *(given.changed_at for given in one.feedback)]
        # The statistics leave out the rows of the last minutes.
        assert max(times) < now - timedelta(minutes=10)


@pytest.mark.django_db
@pytest.mark.slow
def test_the_command_states_that_it_makes_the_data(monkeypatch, settings):
    settings.DEBUG = True
    monkeypatch.setattr(demo, "make_example_data", lambda operator: None)
    assert "example data" in _printed()


@pytest.mark.long
@override_settings(DEBUG=True)
class TestExampleData(TestCase):
    """The data are made once for all of these tests."""

    @classmethod
    def setUpTestData(cls):
        cls.operator = demo.set_up_operator()[0]
        with CaptureQueriesContext(connection) as statements:
            make_example_data(User.objects.get(pk=cls.operator.pk))
        cls.statements = len(statements)

    def setUp(self):
        self.client.force_login(self.operator)

    def page(self, name: str, **query: str) -> str:
        answer = self.client.get(reverse(name, query=query))
        assert answer.status_code == 200
        return answer.content.decode()

    def test_the_number_of_statements_is_bounded(self):
        assert self.statements < MAX_STATEMENTS

    def test_each_view_of_the_list_has_conversations(self):
        for label, query in PRESETS:
            answer = self.client.get(f"{reverse(CONSOLE)}?{query}")
            assert answer.context["cl"].result_list, label

    def test_each_other_state_has_a_conversation(self):
        for state in ("waiting", "soon", "expired"):
            answer = self.client.get(reverse(CONSOLE, query={"state": state}))
            assert answer.context["cl"].result_list, state

    def test_people_ask_in_four_languages(self):
        asked = Session.objects.exclude(metadata={})
        assert {one["language"] for one in asked.values_list("metadata", flat=True)} == {*NAMES}
        scopes = {one.removed_scope or one.scope for one in asked}
        assert len(scopes) > 35
        assert any(scope.startswith("visitor:") for scope in scopes)
        assert 280 <= asked.count() <= 320

    def test_conversations_are_short_and_long(self):
        assert Session.objects.aggregate(longest=Max("last_seq"))["longest"] == LONG
        assert Session.objects.filter(last_seq=2).exists()
        assert Session.objects.filter(last_seq__range=(20, 100)).exists()

    def test_turns_end_in_each_way(self):
        codes = set(Turn.objects.exclude(error="").values_list("error", flat=True))
        assert codes == {failure.code for failure in FAILURES}
        ways = ["complete", "failed", "interrupted", "running", "waiting"]
        assert sorted(set(Turn.objects.values_list("status", flat=True))) == ways
        assert Message.objects.filter(role="tool").count() > 100
        assert Turn.objects.values("model").distinct().count() > 3

    def test_people_rate_replies_with_reasons(self):
        for value in Feedback.Value.values:
            assert Feedback.objects.filter(value=value).exclude(reason="").exists()

    def test_operators_have_acted_with_reasons(self):
        actions = set(AuditEntry.objects.values_list("action", flat=True))
        assert actions >= {
            *("trim", "clear", "purge", "restore", "redact", "hold", "archive", "tag", "note"),
            *("read", "rename", "export", "refused", "import"),
        }
        removals = AuditEntry.objects.filter(action__in=["trim", "clear", "purge"])
        assert not removals.filter(reason="").exists()
        assert SessionTag.objects.exists()
        assert SessionNote.objects.exists()
        assert Message.objects.filter(redacted=True).exists()
        assert len(set(AuditEntry.objects.values_list("created_at__date", flat=True))) > 20

    def test_nothing_is_from_the_future(self):
        now = timezone.now()
        models: tuple[type[Model], ...] = (Session, Message, Turn, Feedback, AuditEntry, Job)
        for model in models:
            assert not model._base_manager.filter(created_at__gt=now).exists(), model

    def test_the_checks_find_nothing(self):
        assert list(check_integrity()) == []
        call_command("chatmemory_audit_verify", stdout=StringIO())

    def test_jobs_are_listed_and_one_is_running(self):
        found = self.page("admin:chatmemory_job_changelist")
        for job in Job.objects.all():
            assert f"#{job.pk}" in found
        assert set(Job.objects.values_list("status", flat=True)) == {
            *("complete", "cancelled", "running")
        }

    def test_each_section_and_each_list_of_the_console_shows_something(self):
        lists = {
            f"{model._meta.app_label}_{model._meta.model_name}_changelist"
            for model in admin.site._registry
            if model._meta.app_label.startswith("chatmemory")
        }
        for page in sorted({section.page for section in sections()} | lists):
            answer = self.client.get(reverse(f"admin:{page}"), follow=True)
            assert answer.status_code == 200, page
            shown = answer.context.get("cl")
            assert shown is None or shown.result_count > 0, page
            assert not EMPTY.search(answer.content.decode()), page

    def test_the_audit_opens_on_changes(self):
        assert "Asked for by the customer" in self.page("admin:chatmemory_auditentry_changelist")
        query = {"action_is": AuditAction.READ.value}
        assert "Read" in self.page("admin:chatmemory_auditentry_changelist", **query)

    def test_people_can_be_found(self):
        for query in ("casey", "lou@example.org"):
            address = reverse("admin:chatmemory_session_people", query={"q": query})
            assert query in self.client.get(address, follow=True).content.decode()

    def test_each_conversation_can_be_read(self):
        chosen = Session.objects.filter(pk__in=SessionNote.objects.values("session"))
        for session in [*chosen, Session.objects.get(last_seq=LONG)]:
            page = reverse("admin:chatmemory_session_change", args=[session.pk])
            assert self.client.get(page).status_code == 200

    def test_the_statistics_have_figures_of_weeks(self):
        today = timezone.now().date()
        figures = read_figures(today - timedelta(days=41), today)
        assert sum(day.sessions for day in figures.days) > 250
        assert sum(day.messages > 0 for day in figures.days) > 35
        assert len(figures.models) > 3
        assert {code for code, _ in figures.failures} == {failure.code for failure in FAILURES}
        found = self.page("admin:chatmemory_statistics_dailyturns_changelist")
        assert "example-large-2" in found

    def test_health_is_good(self):
        assert not [fact for fact in facts(read_health(), read_queue()) if fact.is_bad]
        state = read_maintenance()
        assert not state.is_overdue
        assert not state.has_problems
        assert "The app works" in self.page("admin:chatmemory_maintenance_changelist")

    def test_a_second_start_changes_nothing(self):
        by = Actor.operator(self.operator)
        one, two = Session.objects.filter(running=None, removed_at=None, held_at=None)[5:7]
        of = {"by": by, "reason": "a test"}
        services.update_session(session_key=one.key, scope=one.scope, title="Changed", **of)
        services.purge_session(session_key=two.key, scope=two.scope, **of)
        User.objects.filter(username="casey@example.org").update(first_name="Changed")
        before = _all_rows()
        with self.assertNumQueries(3):  # with a savepoint around it
            make_example_data(self.operator)
        assert _all_rows() == before

    def test_the_command_makes_the_data_once(self):
        assert is_made()
        assert "example data" not in _printed()
        assert conversations.COUNT < Session.objects.count() < conversations.COUNT + 20


def _printed() -> str:
    """Return what the command prints until it would serve."""
    stdout = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "listen", _refuse)
        with pytest.raises(CommandError, match="no port"):
            call_command("demo", stdout=stdout)
    return stdout.getvalue()


def _refuse(port: int) -> None:
    raise CommandError("no port")


def _all_rows() -> list[list[dict[str, object]]]:
    models: list[type[Model]] = [User, *installed_models()]
    return [list(model._base_manager.order_by("pk").values()) for model in models]
