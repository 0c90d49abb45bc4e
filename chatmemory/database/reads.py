"""The reads of each turn and page. See Note [Statements built once]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.db.models import CharField, Model, QuerySet

from chatmemory.database.faults import write_connection
from chatmemory.database.retries import retried
from chatmemory.database.statements import CompiledSelect, Parameter, padded
from chatmemory.models import (
    DIGESTED_COLUMNS,
    HEAD_COLUMNS,
    Head,
    Message,
    Page,
    Session,
    head_of,
    page_of,
    row_digest_of,
)

M = TypeVar("M", bound=Model)


def _page_rows(has_after: bool, has_before: bool, has_limit: bool) -> QuerySet[Any, Any]:
    text = CharField()
    return Session.objects.at(Parameter("scope", text), Parameter("key", text)).page_rows(
        after=Parameter("after") if has_after else None,
        before=Parameter("before") if has_before else None,
        limit=Parameter("limit") if has_limit else None,
    )


_PAGE = CompiledSelect(_page_rows, "SESSION_TTL", is_binary=True)


@retried(is_repeatable=True)
def read_page_at(
    scope: str, key: str, *, after: int | None, before: int | None = None, limit: int | None
) -> Page | None:
    """Read a page of the session at an address as `SessionQuerySet.page` does."""
    shape = (after is not None, before is not None, limit is not None)
    rows = _PAGE.tuples(*shape, scope=scope, key=key, after=after, before=before, limit=limit)
    return page_of(rows, has_digest=after is not None)


def _marked_rows(count: int) -> QuerySet[Any, Any]:
    text = CharField()
    rows: QuerySet[Any, Any] = Message.stored.filter(
        seq__in=[Parameter(f"seq_{index}") for index in range(count)],
        session=Parameter("session"),
        session__scope=Parameter("session__scope", text),
        session__key=Parameter("session__key", text),
        session__epoch=Parameter("session__epoch"),
    )
    return rows.values(*DIGESTED_COLUMNS)


_MARKED = CompiledSelect(_marked_rows)


@retried(is_repeatable=True)
def read_row_digests(head: Head, seqs: Sequence[int]) -> dict[int, str]:
    """Read the digests of these rows of a session; rows that do not exist are left out."""
    values = {f"seq_{index}": seq for index, seq in enumerate(padded(seqs))}
    rows = _MARKED.tuples(len(values), **values, **head.as_session())
    return {seq: row_digest_of(seq, *identity) for seq, *identity in rows}


def _content_rows() -> QuerySet[Any, Any]:
    text = CharField()
    return Session.objects.at(Parameter("scope", text), Parameter("key", text)).content_rows()


_CONTENT = CompiledSelect(_content_rows, "SESSION_TTL")


@retried(is_repeatable=True)
def read_content_at(scope: str, key: str) -> list[Any]:
    """Read the rows of `SessionQuerySet.content_rows` of the session at an address."""
    return _CONTENT.tuples(scope=scope, key=key)


def _session_rows() -> QuerySet[Any, Any]:
    text = CharField()
    found = Session.objects.at(Parameter("scope", text), Parameter("key", text))
    rows: QuerySet[Any, Any] = found.values(*_columns(Session))
    return rows


_SESSION_AT = CompiledSelect(_session_rows, "SESSION_TTL")


@retried(is_repeatable=True)
def read_session_at(scope: str, key: str) -> Session | None:
    """Read the active session at an address."""
    for row in _SESSION_AT.rows(scope=scope, key=key):
        return _instance(Session, row)
    return None


def _head_rows() -> QuerySet[Any, Any]:
    text = CharField()
    found = Session.objects.at(Parameter("scope", text), Parameter("key", text)).with_turn()
    rows: QuerySet[Any, Any] = found.values(*HEAD_COLUMNS.values())
    return rows


_HEAD_AT = CompiledSelect(_head_rows, "SESSION_TTL")


@retried(is_repeatable=True)
def read_head_at(scope: str, key: str) -> Head | None:
    """Read the head of the active session at an address."""
    return next(map(head_of, _HEAD_AT.rows(scope=scope, key=key)), None)


def _owned_session_rows(owner: type[Model]) -> QuerySet[Any, Any]:
    columns = (f"owner__{name}" for name in _columns(owner))
    session = Session.objects.filter(pk=Parameter("pk"))
    rows: QuerySet[Any, Any] = session.values(*_columns(Session), *columns)
    return rows


_OWNED_SESSION = CompiledSelect(_owned_session_rows)


@retried(is_repeatable=True)
def read_session_with_owner(pk: int) -> Session | None:
    """Read a session, even a removed or expired one, and its owner."""
    user = get_user_model()
    for row in _OWNED_SESSION.rows(user, pk=pk):
        session = _instance(Session, row)
        if session.owner_id is not None:
            session.owner = _instance(user, row, "owner__")
        return session
    return None


def _instance(model: type[M], row: Mapping[str, Any], prefix: str = "") -> M:
    names = _columns(model)
    alias = write_connection().alias
    return model.from_db(alias, names, [row[prefix + name] for name in names])


def _columns(model: type[Model]) -> list[str]:
    return [field.attname for field in model._meta.concrete_fields]
