"""The chain of seals reveals each change of an entry or a seal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.models import F
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory.errors import BadInput
from chatmemory.models import AuditEntry, AuditSeal
from chatmemory.services.audit import seals
from chatmemory.services.audit.macs import mac_of
from chatmemory.services.audit.seals import audit_state, seal_audit, verify_audit
from tests.blocks import block_with
from tests.locking import concurrently, second_connection, thread

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)

KEY, OTHER_KEY = "k" * 60, "o" * 60
CHANGES = {
    "actor_kind": "server",
    "actor_id": "8",
    "actor_label": "omar",
    "action": "clear",
    "session_pk": None,
    "key_hash": "f" * 64,
    "reason": "Spam",
    "from_seq": None,
    "to_seq": 8,
    "counts": {"messages": 8},
    "created_at": F("created_at") + timedelta(microseconds=1),
    "mac": "0",
}


def record(count: int = 1, **columns: Any) -> list[AuditEntry]:
    """Insert entries as services do."""
    common = {
        "actor_kind": "operator",
        "actor_id": "7",
        "actor_label": "olga",
        "action": "trim",
        "session_pk": 3,
        "key_hash": "a" * 64,
        "reason": "spam",
        "from_seq": 1,
        "to_seq": 9,
        "counts": {"messages": 9, "b": 1},
    }
    rows = [AuditEntry(**{"created_at": timezone.now(), **common, **columns}) for _ in range(count)]
    for row in rows:
        row.mac = mac_of(row)
        row.save(force_insert=True)
    return rows


def sealed(count: int) -> list[AuditEntry]:
    entries = record(count)
    assert seal_audit() == count
    return entries


def found(**options: Any) -> list[tuple[str, int]]:
    return [(finding.code, finding.number) for finding in verify_audit(**options)]


def entry(row: AuditEntry) -> Any:
    return AuditEntry.objects.filter(pk=row.pk)


def seal(number: int) -> Any:
    return AuditSeal.objects.filter(number=number)


def test_each_entry_gets_one_seal_in_order():
    entries = sealed(3)
    assert seal_audit() == 0
    assert list(AuditSeal.objects.order_by("number").values_list("number", "entry_pk")) == [
        (number, row.pk) for number, row in enumerate(entries, 1)
    ]
    assert found() == []


def test_an_entry_that_is_committed_late_is_sealed_late():
    [first] = record(pk=50)
    seal_audit()
    [late] = record(pk=20)
    assert seal_audit() == 1
    assert list(AuditSeal.objects.order_by("number").values_list("entry_pk", flat=True)) == [
        first.pk,
        late.pk,
    ]
    assert found() == []


def test_the_seals_are_made_in_chunks():
    record(10)
    assert seal_audit(chunk_size=4) == 10
    assert list(AuditSeal.objects.order_by("pk").values_list("number", flat=True)) == [
        *range(1, 11)
    ]
    assert found() == []


@commits
def test_an_interruption_keeps_the_chunks_that_were_sealed():
    record(10)
    inserts = []

    def interrupt(execute, sql, params, many, context):
        if sql.startswith("INSERT INTO") and AuditSeal._meta.db_table in sql:
            inserts.append(sql)
            if len(inserts) == 2:
                raise KeyboardInterrupt
        return execute(sql, params, many, context)

    with pytest.raises(KeyboardInterrupt), connection.execute_wrapper(interrupt):
        seal_audit(chunk_size=4)
    assert AuditSeal.objects.count() == 4
    assert seal_audit() == 6
    assert found() == []


@commits
def test_sealing_inside_a_callers_transaction_is_refused():
    record()
    with transaction.atomic(), pytest.raises(RuntimeError):
        seal_audit()
    assert not AuditSeal.objects.exists()


@pytest.mark.parametrize("column", ["number", "entry_pk"])
def test_the_database_rejects_a_second_seal_with_the_same_number_or_entry(column):
    sealed(2)
    again = {"number": 3, "entry_pk": 0, column: getattr(seal(2).get(), column)}
    with pytest.raises(IntegrityError), transaction.atomic():
        AuditSeal.objects.create(**again, digest="")


@pytest.mark.slow
@commits
def test_simultaneous_sealers_write_one_chain():
    entries = record(100)
    assert sum(concurrently(*[partial(seal_audit, chunk_size=7)] * 4)) == 100
    assert found() == []
    numbers = list(AuditSeal.objects.order_by("number").values_list("number", flat=True))
    assert numbers == [*range(1, 101)]
    assert set(AuditSeal.objects.values_list("entry_pk", flat=True)) == {row.pk for row in entries}


@pytest.mark.slow
@commits
def test_a_sealer_whose_number_was_used_meanwhile_reads_again():
    first, second = record(2)
    with second_connection() as other, other.cursor() as cursor, thread() as call:
        other.set_autocommit(False)
        cursor.execute(
            "INSERT INTO chatmemory_auditseal (number, entry_pk, digest, created_at) "
            "VALUES (1, %s, 'x', '2026-01-01 00:00:00')",
            [second.pk],
        )
        sealer = call(seal_audit)
        with pytest.raises(TimeoutError):
            sealer.result(timeout=0.5)
        other.commit()
        assert sealer.result(timeout=15) == 1
    assert list(AuditSeal.objects.order_by("number").values_list("number", "entry_pk")) == [
        (1, second.pk),
        (2, first.pk),
    ]


def test_every_column_of_an_entry_is_sealed():
    assert {field.attname for field in AuditEntry._meta.concrete_fields} == set(seals.SEALED)
    assert {*CHANGES, "id"} == set(seals.SEALED)


@pytest.mark.parametrize("column", CHANGES)
def test_an_edited_entry_is_found(column):
    rows = sealed(3)
    entry(rows[1]).update(**{column: CHANGES[column]})
    [finding] = verify_audit()
    assert (finding.code, finding.number) == ("changed", 2)
    assert f"Entry {rows[1].pk} " in finding.sentence


def test_another_key_order_in_the_counts_is_no_edit():
    [row] = sealed(1)
    entry(row).update(counts={"b": 1, "messages": 9})
    assert found() == []


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_deleted_entry_is_found(index):
    rows = sealed(3)
    entry(rows[index]).delete()
    [finding] = verify_audit()
    assert (finding.code, finding.number) == ("deleted", index + 1)
    assert f"Entry {rows[index].pk} " in finding.sentence


def test_an_entry_with_another_primary_key_is_reported_as_deleted():
    rows = sealed(3)
    entry(rows[1]).update(id=rows[2].pk + 1)
    assert found() == [("deleted", 2)]
    assert audit_state().unsealed == 1


def test_two_swapped_entries_are_found():
    rows = [record(reason=reason)[0] for reason in ("a", "b", "c", "d", "e")]
    seal_audit()
    entry(rows[1]).update(mac="")  # the unique index also rejects a temporary copy
    for here, there in ((3, 1), (1, 3)):
        other = rows[there]
        entry(rows[here]).update(reason=other.reason, created_at=other.created_at, mac=other.mac)
    assert found() == [("changed", 2), ("changed", 4)]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1], ("seals_missing", 1)),
        ([3], ("seals_missing", 3)),
        ([2, 3], ("seals_missing", 2)),
    ],
)
def test_deleted_seals_are_found(numbers, expected):
    sealed(5)
    AuditSeal.objects.filter(number__in=numbers).delete()
    assert found() == [expected]
    assert audit_state().unsealed == len(numbers)


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("digest", "0" * 64, "seal_changed"),
        ("created_at", datetime(2020, 1, 1, tzinfo=UTC), "changed"),
        ("entry_pk", 0, "deleted"),
    ],
)
def test_an_edited_seal_is_found(column, value, code):
    sealed(5)
    seal(3).update(**{column: value})
    assert found() == [(code, 3)]


def test_an_edit_at_the_last_seal_is_reported_for_both_seal_and_entry():
    rows = sealed(3)
    seal(3).update(digest="0" * 64)
    [finding] = verify_audit()
    assert (finding.code, finding.number) == ("unproven", 3)
    assert f"1 seal (3) or its entry ({rows[2].pk}) was" in finding.sentence


def test_swapped_seals_are_found():
    sealed(5)
    seal(2).update(number=100)
    seal(4).update(number=2)
    seal(100).update(number=4)
    [finding] = verify_audit()
    assert (finding.code, finding.number) == ("unproven", 2)
    assert finding.sentence.startswith("Of 4 seals (2 to 5) and their entries (")


def test_renumbered_seals_are_found():
    sealed(3)
    AuditSeal.objects.filter(number=3).update(number=10)
    assert found() == [("seals_missing", 3)]


def test_a_seal_with_the_number_of_a_deleted_seal_is_found():
    sealed(4)
    seal(3).delete()
    seal(4).update(number=3)
    assert found() == [("unproven", 3)]


def test_a_seal_outside_the_chain_is_found():
    sealed(2)
    [forged] = record()
    AuditSeal.objects.create(number=0, entry_pk=forged.pk, digest="0" * 64)
    assert audit_state().unsealed == 0
    assert found() == [("seal_changed", 0)]


def test_each_edited_entry_is_one_finding():
    rows = sealed(60)
    for index in (9, 30):  # the last of a chunk, and one in the middle
        entry(rows[index]).update(reason="mine")
    assert found(chunk_size=10) == [("changed", 10), ("changed", 31)]


def test_adjacent_edits_are_one_finding_that_lists_them():
    rows = sealed(40)
    entry(rows[0]).update(reason="mine")
    AuditEntry.objects.filter(pk__gt=rows[9].pk, pk__lte=rows[29].pk).update(reason="mine")
    first, second = verify_audit()
    assert (first.code, first.number) == ("changed", 1)
    assert (second.code, second.number) == ("unproven", 11)
    assert f"entries ({rows[10].pk}, " in second.sentence
    assert "seals (11 to 30)" in second.sentence


def test_a_kept_head_reveals_a_truncated_chain():
    rows = sealed(5)
    head = audit_state().head
    assert head == f"5:{seal(5).get().digest}"
    assert found(head=head) == []
    entry(rows[4]).delete()
    seal(5).delete()
    assert found() == []
    assert found(head=head) == [("cut", 5)]


def test_a_kept_head_reveals_a_rebuilt_end():
    rows = sealed(5)
    head = audit_state().head
    AuditSeal.objects.filter(number__gt=3).delete()
    entry(rows[4]).delete()
    record()
    seal_audit()
    assert found() == []
    assert found(head=head) == [("replaced", 5)]


def test_an_old_head_is_still_valid():
    sealed(3)
    head = audit_state().head
    sealed(3)
    assert found(head=head) == []


def test_a_kept_head_reveals_that_all_seals_were_deleted():
    sealed(3)
    head = audit_state().head
    AuditSeal.objects.all().delete()
    assert found(head=head) == [("cut", 1)]


@pytest.mark.parametrize("head", ["1", "0:" + "a" * 64, "1:" + "A" * 64, "x", "1:" + "a" * 63])
def test_a_malformed_head_is_refused(head):
    with pytest.raises(BadInput):
        verify_audit(head=head)


@pytest.mark.regression
@pytest.mark.parametrize("column", CHANGES)
def test_an_entry_edited_before_it_was_sealed_is_found(column):
    rows = record(3)
    entry(rows[1]).update(**{column: CHANGES[column]})
    [finding] = verify_audit()
    assert (finding.code, finding.number) == ("forged", 0)
    assert f"1 entry ({rows[1].pk}) was" in finding.sentence
    assert seal_audit() == 2
    assert found() == [("forged", 0)]


@pytest.mark.regression
def test_an_entry_inserted_without_the_key_is_found():
    [genuine] = record()
    forged = AuditEntry.objects.get(pk=genuine.pk)
    forged.pk, forged.reason, forged.mac = None, "forged", forged.mac[:-1] + "x"
    forged.save()
    [finding] = verify_audit()
    assert (finding.code, finding.number) == ("forged", 0)


@pytest.mark.regression
def test_the_database_refuses_a_copy_of_an_entry():
    [row] = record()
    row.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save(force_insert=True)


@pytest.mark.regression
def test_a_forged_entry_with_a_seal_is_found():
    rows = record(2)
    entry(rows[0]).update(reason="forged")
    row = AuditEntry.objects.filter(pk=rows[0].pk).values(*seals.SEALED).get()
    [first] = seals._seals_after(None, [{**row, "now": timezone.now()}])
    first.save()
    seal_audit()
    assert found() == [("forged", 1)]


@pytest.mark.regression
def test_many_forged_entries_are_one_finding():
    record(15)
    AuditEntry.objects.update(reason="mine")
    [finding] = verify_audit()
    assert finding.sentence.startswith("15 entries (")


@pytest.mark.regression
def test_an_entry_under_an_unknown_key_is_one_finding_and_is_not_sealed():
    with override_settings(CHATMEMORY={"AUDIT_KEY": KEY}):
        record(2)
    with override_settings(CHATMEMORY={"AUDIT_KEY": OTHER_KEY}):
        assert found() == [("unknown_key", 0)]
        assert seal_audit() == 0
        assert found(former_keys=[KEY]) == []
    with override_settings(CHATMEMORY={"AUDIT_KEY": OTHER_KEY, "AUDIT_KEY_FALLBACKS": [KEY]}):
        assert found() == []
        assert seal_audit() == 2


@pytest.mark.regression
def test_the_audit_key_is_not_djangos_secret_key():
    with override_settings(CHATMEMORY={"AUDIT_KEY": KEY}, SECRET_KEY=OTHER_KEY):
        sealed(2)
    with override_settings(CHATMEMORY={"AUDIT_KEY": KEY}, SECRET_KEY="s" * 60):
        assert found() == []
    with override_settings(CHATMEMORY={"AUDIT_KEY": OTHER_KEY}, SECRET_KEY=KEY):
        assert found() == [("unproven", 1)]


def test_sealing_requires_the_key():
    with override_settings(SECRET_KEY=KEY):
        sealed(3)
        AuditSeal.objects.filter(number__gt=2).delete()
    with override_settings(SECRET_KEY=OTHER_KEY):
        assert seal_audit() == 0
        assert seal_audit(former_keys=[KEY]) == 1
    with override_settings(SECRET_KEY=KEY):
        assert found() == [("unproven", 3)]


def test_after_a_rotation_the_chain_verifies_while_the_former_key_is_known():
    with override_settings(SECRET_KEY=KEY):
        sealed(3)
    with override_settings(SECRET_KEY=OTHER_KEY, SECRET_KEY_FALLBACKS=["x", KEY]):
        sealed(3)
        assert found() == []
    with override_settings(SECRET_KEY=OTHER_KEY):
        assert found(former_keys=[KEY]) == []
        assert found() == [("unproven", 1)]


def test_unsealed_entries_are_counted():
    assert audit_state().head == ""
    sealed(1)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    record(2)
    record(created_at=long_ago)
    state = audit_state()
    assert (state.unsealed, state.oldest_unsealed) == (3, long_ago)


def test_verifying_costs_two_statements_for_each_chunk():
    found()  # its record exists from now on; two statements store it
    counts = []
    for _ in range(2):
        sealed(20)
        with CaptureQueriesContext(connection) as queries:
            assert found(chunk_size=10) == []
        counts.append(len(queries))
    assert counts == [2 + 6, 2 + 10]


def verify(capsys: Any, **options: Any) -> list[str]:
    call_command("chatmemory_audit_verify", **options)
    return str(capsys.readouterr().out).splitlines()


def test_the_command_seals_new_entries_and_prints_the_head(capsys):
    assert verify(capsys) == ["Sealed now: 0", "No entry is sealed."]
    hour_ago = timezone.now() - timedelta(hours=1)
    record(2, created_at=hour_ago)
    assert verify(capsys) == [
        f"Not sealed yet: 2 entries, the oldest from {hour_ago.isoformat(timespec='seconds')}",
        "Sealed now: 2",
        f"head {audit_state().head}",
    ]
    assert AuditSeal.objects.count() == 2


def test_the_command_seals_nothing_with_no_seal(capsys):
    record(created_at=datetime(2026, 1, 2, tzinfo=UTC))
    assert verify(capsys, no_seal=True) == [
        "Not sealed yet: 1 entry, the oldest from 2026-01-02T00:00:00+00:00",
        "No entry is sealed.",
    ]
    assert not AuditSeal.objects.exists()


def test_the_command_fails_with_a_finding_and_seals_nothing(capsys):
    rows = sealed(2)
    entry(rows[0]).delete()
    record()
    with pytest.raises(CommandError, match="1 finding") as failed:
        verify(capsys)
    assert failed.value.returncode == 1
    assert f"Entry {rows[0].pk} (seal 1) was deleted." in capsys.readouterr().out
    assert audit_state().unsealed == 1


def test_the_command_accepts_a_head_and_former_keys(capsys, tmp_path):
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    with override_settings(SECRET_KEY=KEY):
        sealed(2)
    head = audit_state().head
    assert verify(capsys, head=head, former_key_file=[str(file)])[-1] == f"head {head}"
    seal(2).delete()
    with pytest.raises(CommandError, match="1 finding"):
        verify(capsys, head=head, former_key_file=[str(file)])
    with pytest.raises(CommandError, match="head"):
        verify(capsys, head="x")
    with pytest.raises(CommandError, match="can't be read"):
        verify(capsys, former_key_file=[str(tmp_path / "none")])


def test_the_command_keeps_the_head_in_a_file(capsys, tmp_path):
    file = tmp_path / "head"
    with pytest.raises(CommandError, match=r"The head file .*/head can't be read"):
        verify(capsys, head_file=file)
    file.touch()
    for count in (2, 3):
        record(count)
        verify(capsys, head_file=file)
        assert file.read_text() == f"{audit_state().head}\n"
    assert [*tmp_path.iterdir()] == [file]
    kept = file.read_text()
    AuditSeal.objects.filter(number__gt=3).delete()
    with pytest.raises(CommandError, match="1 finding"):
        verify(capsys, head_file=file)
    assert file.read_text() == kept
    with pytest.raises(CommandError, match="Give either") as failed:
        verify(capsys, head=kept, head_file=file)
    assert failed.value.returncode == 2


def test_a_head_file_that_cannot_be_written_is_an_error(capsys, tmp_path):
    (tmp_path / "head.new").mkdir()
    (tmp_path / "head").touch()
    record()
    with pytest.raises(CommandError, match=r"The head file .* can't be written: IsADirectory"):
        verify(capsys, head_file=tmp_path / "head")


@commits
def test_the_command_reports_a_database_error(capsys):
    record()

    def refuse(execute, sql, params, many, context):
        if sql.startswith("INSERT"):
            raise OperationalError("gone")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse), pytest.raises(CommandError):
        verify(capsys)
    assert audit_state().unsealed == 1


@commits
def test_the_triggers_in_the_documentation_refuse_changes():
    sql = block_with("docs/howto/audit.md", TRIGGERS[connection.vendor]).text
    triggers = re.findall(r"^CREATE TRIGGER (\w+).* ON (\w+)", sql, re.MULTILINE)
    with connection.cursor() as cursor:
        try:
            for statement in _statements(sql):
                cursor.execute(statement)
            [row] = sealed(1)
            for change in (entry(row).delete, seal(1).delete, lambda: seal(1).update(digest="")):
                with pytest.raises(DatabaseError):
                    change()
            assert found() == []
        finally:
            for name, table in triggers:
                of = f" ON {table}" if connection.vendor == "postgresql" else ""
                cursor.execute(f"DROP TRIGGER {name}{of}")
            if connection.vendor == "postgresql":
                cursor.execute("DROP FUNCTION chatmemory_audit_refuse")
    assert len(triggers) == (2 if connection.vendor == "postgresql" else 4)


TRIGGERS = {"postgresql": "CREATE FUNCTION", "mysql": "SIGNAL SQLSTATE", "sqlite": "SELECT RAISE"}
"""A text of the page's SQL for each database."""


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only for PostgreSQL")
def test_the_role_in_the_documentation_can_only_insert():
    grants = block_with("docs/howto/audit.md", "GRANT SELECT").text
    [row] = sealed(1)
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE chatmemory_test_app")  # until the rollback
        cursor.execute(grants.replace(" app;", " chatmemory_test_app;"))
        cursor.execute("SET LOCAL ROLE chatmemory_test_app")
        sealed(1)
        for change in (entry(row).delete, seal(1).delete, lambda: seal(1).update(digest="")):
            with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
                change()
        cursor.execute("RESET ROLE")


def _statements(sql: str) -> list[str]:
    return [text for text in re.split(r";\n(?=CREATE)", sql.rstrip(";\n") + ";") if text.strip()]
