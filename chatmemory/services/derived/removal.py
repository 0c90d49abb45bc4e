"""Remove rows that other apps made from messages, together with these messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from django.apps import apps
from django.db.models import F, Q, QuerySet

from chatmemory.database.after_commit import call_host_after_commit
from chatmemory.database.batches import in_pages
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.models import Session, SessionQuerySet, all_on_primary
from chatmemory.models.derived import (
    DerivedFileRow,
    DerivedPersonRow,
    DerivedRow,
    all_rows,
    followers,
)

# Note [Derived rows]
#
# The app that makes rows from messages declares the range of each row, and has no code of its own
# for removals. Every service that removes or changes messages calls a function of this module in
# its transaction, under the session's lock, with one statement for each model:
# - `forget_words`: a message is redacted or has become unreadable;
# - `hide_rows`: trim, clear, purge, a withdrawal, and an edit that supersedes messages;
# - `delete_below`, `delete_all`: vacuum, erasure and a discarded import, in chunks;
# - `delete_restored`: the database was restored from a backup, and the tables of the rows maybe
#   from another one; seqs are then given again;
# - `adopt_rows`, `delete_person_rows`: rows of a person.
# A writer reads the messages without a lock. So `store` locks the session and compares what the
# writer has seen: nothing that was made from removed words is stored after their removal.
#
# Without a derived model none of them executes a statement. Locks are taken in this order: the
# session, then derived rows.


def forget_words(session_pk: int, low: int, high: int) -> None:
    """Remove the rows with words of the messages `low` to `high`. Needs the lock.

    The caller moves the session's `rows_revision`, so that `store` rejects earlier readers.
    """
    for model in range_models():
        if model.contains_words:
            remove(overlapping(model, session_pk, low, high))


def forget_text(session_pk: int, user_seq: int | None) -> None:
    """Remove the rows with words of a turn's text that is in no message. Needs the lock.

    They are the rows from the turn's user message on, or, for a turn without one, those with an
    open range. Moves `rows_revision`, so that `store` rejects a writer that has read the text.
    """
    models = [model for model in range_models() if model.contains_words]
    for model in models:
        if user_seq is None:
            remove(_rows_of(model, session_pk).filter(high=None))
        else:
            remove(overlapping(model, session_pk, user_seq, None))
    if models:
        revision = F("revision") + 1
        # In this order: MariaDB computes each column from those that are set before it.
        Session.objects.filter(pk=session_pk).update(rows_revision=revision, revision=revision)


def hide_rows(session_pk: int, low: int, high: int) -> None:
    """Remove rows whose messages are hidden, where a model wants this: a removal, withdrawal, edit.

    Needs the lock.
    """
    for model in range_models():
        if model.when_hidden == "delete":
            remove(overlapping(model, session_pk, low, high))


def delete_below(session_pk: int, below: int, limit: int) -> bool:
    """Remove rows whose first message is below a seq; return whether some are left.

    At most `limit` rows of each model. Needs the lock.
    """
    found = [_rows_of(model, session_pk).filter(low__lt=below) for model in range_models()]
    return _remove_some(found, limit)


def delete_all(session_pk: int, limit: int) -> bool:
    """Remove all derived and registered rows of a session; return whether some are left.

    At most `limit` rows of each model. Needs the lock.
    """
    return _remove_some(_all_of_sessions(session_pk), limit)


def delete_restored(session_pks: Collection[int]) -> None:
    """Remove the derived rows of the sessions of a restored database. Needs their locks."""
    for model in range_models():
        remove(all_rows(model).filter(session__in=session_pks))


def count_derived(sessions: SessionQuerySet | int) -> int:
    """Count the derived and registered rows of sessions, or of the one with this primary key."""
    return sum(rows.count() for rows in _all_of_sessions(sessions))


def adopt_rows(visitor: str, user: str) -> None:
    """Give the rows of a visitor to a user; both are scopes. Needs the visitor's lock."""
    for model in person_models():
        model.adopt(visitor, user)


def count_person_rows(scope: str) -> int:
    """Count the rows of a person that belong to no session."""
    return sum(all_rows(model).filter(scope=scope).count() for model in person_models())


@retried(is_repeatable=True)
def delete_person_rows(scope: str) -> int:
    """Delete the rows of a person that belong to no session; return how many there were."""
    models = person_models()
    if not models:
        return 0
    with locked_transaction():
        return sum(remove(all_rows(model).filter(scope=scope)) for model in models)


def clean_up() -> None:
    """Let each model delete what its tombstones name. Raises what its `clean_up` raises."""
    for model in range_models():
        if issubclass(model, DerivedFileRow):
            durably(model.clean_up, is_repeatable=True)


def exported_rows(session_pk: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a session that an export contains, oldest first, with their model."""
    for model in range_models():
        if model.exported:
            for row in in_pages(_rows_of(model, session_pk)):
                values = {"derived": model._meta.label, "low": row.low, "high": row.high}
                yield {**values, "values": row.as_export()}


def damaged_ranges(session_pks: Collection[int]) -> Counter[int]:
    """Count the derived rows of sessions that have an impossible range, by session.

    It begins with a message that does not exist, or ends before it begins or after the newest
    message.
    """
    beyond = Q(low__lt=F("session__stored_from")) | Q(low__gt=F("session__last_seq"))
    beyond |= Q(high__lt=F("low")) | Q(high__gt=F("session__last_seq"))
    found: Counter[int] = Counter()
    for model in range_models():
        rows = all_rows(model).filter(beyond, session__in=session_pks)
        found.update(rows.values_list("session", flat=True))
    return found


def range_models() -> list[type[DerivedRow]]:
    """Return the models with rows that were made from messages."""
    return _installed_models(DerivedRow)


def person_models() -> list[type[DerivedPersonRow]]:
    """Return the models with rows of people."""
    return _installed_models(DerivedPersonRow)


def _installed_models(base: Any) -> list[Any]:
    """Return the models of the installed apps that are made from an abstract one."""
    found = (model for model in apps.get_models() if issubclass(model, base))
    return [model for model in found if not model._meta.proxy]


def _rows_of(model: type[DerivedRow], session_pk: int) -> QuerySet[Any, Any]:
    return all_rows(model).filter(session=session_pk)


def overlapping(
    model: type[DerivedRow], session_pk: int, low: int, high: int | None
) -> QuerySet[Any, Any]:
    rows = _rows_of(model, session_pk).filter(Q(high=None) | Q(high__gte=low))
    return rows if high is None else rows.filter(low__lte=high)


def _all_of_sessions(sessions: SessionQuerySet | int) -> list[QuerySet[Any, Any]]:
    """Select all derived and registered rows of sessions, or of the one with this primary key."""
    lookup = "" if isinstance(sessions, int) else "__in"
    derived = [all_rows(model).filter(**{f"session{lookup}": sessions}) for model in range_models()]
    registered = [
        all_on_primary(model).filter(**{f"{name}{lookup}": sessions})
        for model, name in followers().items()
    ]
    return derived + registered


def remove(rows: QuerySet[Any, Any]) -> int:
    """Delete rows, or make tombstones of them, cleaned up after the commit; return the number."""
    if not issubclass(rows.model, DerivedFileRow):
        return rows.delete()[1].get(rows.model._meta.label, 0)
    count = rows.update(**rows.model.emptied())
    if count:
        call_host_after_commit(rows.model.clean_up)
    return count


def _remove_some(found: Iterable[QuerySet[Any, Any]], limit: int) -> bool:
    """Remove at most `limit` rows of each query; return whether some are left."""
    is_more = False
    for rows in found:
        # By primary keys, since not all databases can limit a DELETE.
        pks = list(rows.order_by().values_list("pk", flat=True)[:limit])
        if pks:
            remove(rows.filter(pk__in=pks))
        is_more |= len(pks) == limit
    return is_more
