"""A pop is audited and undone as any removal."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from chatmemory import services
from chatmemory.agents.items import item_of
from chatmemory.agents.newest import withdraw_newest
from chatmemory.errors import BadInput, ChatMemoryError, Conflict, NotFound
from chatmemory.models import AuditEntry, Job, Message, Session, WithdrawnRange
from chatmemory.services import Actor
from chatmemory.services.audit.seals import verify_audit
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.jobs.claims import claim_job
from chatmemory.services.jobs.create import Order, create_job, undo_job
from chatmemory.services.jobs.preview import skip_codes
from chatmemory.services.jobs.run import run_slice
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.turns.unstored import read_unstored
from tests.admin.visits import LIST, action_url, confirm, operator, talk_of
from tests.factories import BY, TALK, age_audit, make_messages, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

AT = {"by": BY, "scope": TALK["scope"]}


def talk() -> Session:
    return talk_of(None, *(f"m{n}" for n in range(1, 7)))


def pop(**at: object) -> AuditEntry:
    """Pop an item; return the entry of the audit."""
    withdraw_newest(item_of, **{**TALK, "reason": "popped", **at})
    return AuditEntry.objects.filter(action="withdraw").latest("pk")


def shown() -> list[int]:
    return [row.seq for row in services.read_history(**TALK, superseded=False).rows]


def restore(entry: AuditEntry) -> AuditEntry:
    return services.restore_session(entry_pk=entry.pk, **AT, reason="wanted")


def refusal(entry: AuditEntry) -> str:
    """Return why a restore is refused; check that the preview and the restore state it."""
    refused = services.preview_restore(entry_pk=entry.pk, **AT).refusal
    assert isinstance(refused, ChatMemoryError)
    with pytest.raises(type(refused), match=str(refused)):
        restore(entry)
    return str(refused)


def age(days: float = 31) -> None:
    """Move withdrawals and the audit back by these days."""
    WithdrawnRange.objects.update(withdrawn_at=F("withdrawn_at") - timedelta(days=days))
    age_audit(timedelta(days=days))


def test_a_pop_writes_one_entry_without_content():
    session = talk()
    found = pop()
    assert (found.session_pk, found.from_seq, found.to_seq) == (session.pk, 6, 6)
    assert (found.counts, found.reason, found.actor_id) == ({"messages": 1}, "popped", BY.id)
    assert list(verify_audit()) == []


def test_a_reason_that_cannot_be_stored_is_refused():
    talk()
    with pytest.raises(BadInput):
        pop(reason="nul \0")
    assert shown() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_each_pop_is_undone_alone_in_any_order(order):
    talk()
    entries = [pop(), pop(), pop()]
    hidden = {6, 5, 4}
    for number in order:
        plan = services.preview_restore(entry_pk=entries[number].pk, **AT)
        assert (plan.messages, plan.undoes, plan.moves_epoch) == (1, [entries[number]], False)
        restored = restore(entries[number])
        assert restored.counts == {"messages": 1, "withdrawal": entries[number].pk}
        hidden -= {6 - number}
        assert shown() == [seq for seq in range(1, 7) if seq not in hidden]
    assert refusal(entries[0]) == "These messages are not withdrawn."
    assert list(check_integrity()) == []


def test_the_undo_of_a_pop_undoes_no_later_trim():
    talk()
    popped = pop()
    trimmed = services.trim_session(**TALK, before_seq=3, reason="")
    restore(popped)
    assert shown() == [3, 4, 5, 6]
    assert trimmed is not None
    restore(trimmed)
    assert shown() == [1, 2, 3, 4, 5, 6]


def test_the_undo_of_a_trim_undoes_no_later_pop():
    talk()
    trimmed = services.trim_session(**TALK, before_seq=3, reason="")
    popped = pop()
    assert trimmed is not None
    plan = services.preview_restore(entry_pk=trimmed.pk, **AT)
    assert plan.undoes == [trimmed]
    restore(trimmed)
    assert shown() == [1, 2, 3, 4, 5]
    restore(popped)
    assert shown() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("remove", [services.clear_session, services.purge_session])
def test_a_later_removal_is_undone_first(remove):
    talk()
    popped = pop()
    removed = remove(**TALK, reason="")
    assert refusal(popped) == "A later removal hides these messages. Undo it first."
    restore(removed)
    assert shown() == [1, 2, 3, 4, 5]
    restore(popped)
    assert shown() == [1, 2, 3, 4, 5, 6]


def test_after_undo_days_a_vacuum_deletes_the_content():
    talk()
    popped = pop()
    vacuum()
    assert Message.stored.get(seq=6).text == "m6"
    age()
    vacuum()
    assert Message.stored.get(seq=6).text == ""
    assert refusal(popped) == "These messages were deleted permanently."
    assert list(check_integrity()) == []


def test_the_rows_of_a_vacuumed_session_cannot_be_restored():
    talk()
    popped = pop()
    services.clear_session(**TALK, reason="")
    age()
    vacuum()
    assert refusal(popped) == "These messages are not withdrawn."


def test_persons_undo_only_their_own_pops():
    ann, ben = (Actor.user(make_user(name)) for name in ("ann", "ben"))
    own = {"session_key": "talk", "by": ann}
    services.append_messages(**own, messages=make_messages("a", "b"), create=True)
    popped = pop(**own, scope=None)
    popped_by_operator = pop(scope=ann.owner)
    for by, entry in ((ben, popped), (ann, popped_by_operator)):
        with pytest.raises(NotFound):
            services.restore_session(entry_pk=entry.pk, by=by, reason="")
    services.restore_session(entry_pk=popped.pk, by=ann, reason="")
    rows = services.read_history(**own, superseded=False).rows
    assert [row.text for row in rows] == ["b"]


def test_an_undone_pop_does_not_undo_a_later_one_of_another_person():
    ann = Actor.user(make_user("ann"))
    own = {"session_key": "talk", "by": ann}
    services.append_messages(**own, messages=make_messages("a", "b"), create=True)
    popped = pop(**own, scope=None)
    services.restore_session(entry_pk=popped.pk, by=ann, reason="")
    pop(scope=ann.owner)
    with pytest.raises(Conflict, match="already undone"):
        services.restore_session(entry_pk=popped.pk, by=ann, reason="")
    rows = services.read_history(**own, superseded=False).rows
    assert [row.text for row in rows] == ["a"]


def test_the_admin_undoes_the_newest_pop():
    session = talk()
    entries = [pop(), pop()]
    client = operator("view_session", "view_transcript", "restore_history")
    page = client.get(f"{LIST}{session.pk}/change/")
    assert "1 message was withdrawn (5 to 5)" in page.text
    assert f"&amp;entry={entries[1].pk}" in page.text
    address = f"{action_url('restore', session)}&entry={entries[1].pk}"
    assert client.get(address).context["summary"].messages == 1
    confirm(client, address)
    assert shown() == [1, 2, 3, 4, 5]
    confirm(client, action_url("restore", session))
    assert shown() == [1, 2, 3, 4, 5, 6]


def test_the_admin_states_that_popped_messages_were_deleted():
    session = talk()
    pop()
    age()
    vacuum()
    client = operator("view_session", "view_transcript", "restore_history")
    page = client.get(f"{LIST}{session.pk}/change/")
    [gap] = page.context["gaps"]
    assert gap.until is None
    assert "Undo…" not in page.text
    assert skip_codes(session)["restore"] == "unchanged"


def test_a_pop_hides_no_text_of_a_turn_that_is_shown_again():
    session = talk()
    for client_id in ("runs", "waits"):
        services.admit_turn(**TALK, client_id=client_id, content="Still here?", owner="me")
    restore(services.clear_session(**TALK, reason=""))
    pop()
    [unstored] = read_unstored(session=Session.objects.get())
    assert not unstored.is_hidden
    client = operator("view_session", "view_transcript")
    page = client.get(f"{LIST}{session.pk}/change/")
    assert [text.is_removed for text in page.context["unstored"]] == [False]


def test_the_undo_of_a_job_undoes_no_later_pop():
    session = talk()
    sessions, order = Session.objects.all(), Order(by=BY, reason="clean")
    job = create_job(action="trim", sessions=sessions, order=order, params={"keep_last": 2})
    run_slice(claim_job(owner="tests", job_pk=job.pk))
    popped = pop()
    undo = undo_job(job=job, sessions=sessions, order=order)
    run_slice(claim_job(owner="tests", job_pk=undo.pk))
    assert shown() == [1, 2, 3, 4, 5]
    assert Job.objects.get(pk=undo.pk).done == 1
    restore(popped)
    assert session.withdrawn.count() == 0
