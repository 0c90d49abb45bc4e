"""A small copy of the data of the console at scale: `tests.programs.benchmarks.console`."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.urls import reverse

from chatmemory.admin.choices import TextFilter
from chatmemory.models import AuditEntry, Feedback, Message, Session, SessionTag, Turn
from chatmemory.services.audit.seals import verify_audit
from chatmemory.services.integrity.sessions import check_integrity
from tests.programs.benchmarks.console import measuring
from tests.programs.benchmarks.console.creation import create
from tests.programs.benchmarks.console.examples import ABSENT, Examples
from tests.programs.benchmarks.console.inserts import insert_select
from tests.programs.benchmarks.console.measuring import Measured
from tests.programs.benchmarks.console.meter import explain
from tests.programs.benchmarks.console.pages import find_targets
from tests.programs.benchmarks.console.sizes import Size

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("postgresql")]

SMALL = Size.of(sessions=400, messages=8_000)


@pytest.mark.long
def test_the_data_has_no_damage_and_all_states():
    create(SMALL, str)
    assert list(check_integrity()) == []
    assert {one.code for one in verify_audit()} == set()
    assert Session.objects.count() == AuditEntry.objects.count() == SMALL.sessions
    assert Session.objects.order_by("-last_seq")[0].last_seq == SMALL.giant
    assert 0.8 * SMALL.messages < Message.stored.count() < 1.2 * SMALL.messages
    for column in ("archived_at", "held_at", "pinned_at", "removed_at", "expires_at", "running"):
        assert Session.objects.filter(**{f"{column}__isnull": False}).exists(), column
    assert set(Turn.objects.values_list("status", flat=True)) == set(Turn.Status.values)
    assert set(Feedback.objects.values_list("value", flat=True)) == {-1, 1}
    assert SessionTag.objects.exists()


def test_no_two_texts_are_the_same():
    create(SMALL, str)
    texts = Message.stored.filter(body__isnull=True).values_list("text", flat=True)
    assert len(set(texts)) == len(texts)


def test_unnamed_columns_get_their_defaults():
    columns = {"actor_kind": "'command'", "mac": "number::text"}
    insert_select(AuditEntry, columns, "generate_series(1, 2) AS number")
    entries = AuditEntry.objects.order_by("pk")
    assert [(one.counts, one.session_pk, one.reason) for one in entries] == [({}, None, "")] * 2
    assert all(one.created_at for one in entries)


@pytest.mark.parametrize("columns", [{"wrong": "1"}, {"session": "1", "seq": "1"}])
def test_a_field_that_is_unknown_or_has_no_value_is_refused(columns):
    with pytest.raises(ValueError, match=r"no field wrong|tokens has no default"):
        insert_select(Message, columns, "generate_series(1, 1)")


@pytest.mark.long
def test_each_filter_and_route_is_measured():
    create(SMALL, str)
    client = measuring.operator_client()
    targets = list(find_targets(client, Examples.read()))
    assert [target.name for target in targets if target.url is None] == []
    urls = {str(target.url) for target in targets}
    assert len({(target.url, target.data is None) for target in targets}) == len(targets)
    for model in (Session, AuditEntry):
        address = reverse(f"admin:chatmemory_{model._meta.model_name}_changelist")
        filters = admin.site.get_model_admin(model).get_list_filter(None)
        texts = [one.parameter_name for one in filters if issubclass(one, TextFilter)]
        assert {f"{address}?{name}={ABSENT}" for name in texts} <= urls
        names = {one.parameter_name for one in filters}
        links = re.findall(r'href="\?(\w+)=([^"&]+)"', client.get(address).content.decode())
        choices = {f"{address}?{name}={value}" for name, value in links if name in names}
        assert len(choices) > 5
        assert choices <= urls


@pytest.mark.long
def test_the_statements_of_a_page_are_counted():
    create(SMALL, str)
    [page] = measuring.measure_all(only="auditentry_changelist action_is=read", runs=2)
    # At least the login, the user, the count and the entries.
    assert (page.status, 4 <= page.statements <= 12) == (200, True)
    assert page.slowest is not None
    assert 0 < page.slowest.ms <= page.ms
    assert "Execution Time" in explain(page.slowest)


@pytest.mark.parametrize(
    ("statements", "ms", "status", "verdict"),
    [
        (12, 150.0, 200, "OK"),
        (13, 151.0, 302, "over 12 statements, over 150 ms"),
        (1, 1.0, 500, "STATUS 500"),
        (0, 0.0, 0, "NO EXAMPLE"),
    ],
)
def test_the_verdict_names_each_limit(statements, ms, status, verdict):
    page = Measured(name="x", status=status, statements=statements, ms=ms, slowest=None)
    assert page.verdict == verdict


@pytest.mark.long
@pytest.mark.parametrize(("limit", "over"), [(1, 1), (100, 0)])
def test_pages_over_a_limit_are_counted_and_explained(monkeypatch, limit, over):
    create(SMALL, str)
    monkeypatch.setattr(measuring, "MAX_STATEMENTS", limit)
    monkeypatch.setattr(measuring, "MAX_MS", 60_000)
    lines: list[str] = []
    only = "auditentry_changelist action_is=read"
    assert measuring.print_all(lines.append, only=only, runs=1, with_plans=True) == over
    assert sum("Execution Time" in line for line in lines) == over
    assert lines[-1] == f"\n{over} pages are not OK.\n"
