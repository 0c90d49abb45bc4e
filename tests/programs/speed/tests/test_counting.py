"""Statements and compilations are counted."""

from __future__ import annotations

import threading

import pytest
from django.db import connection
from django.db.models import F, OuterRef, Subquery
from django.db.models.sql import Query

from chatmemory.models import Message, Session
from tests.programs.speed.counting import counted

pytestmark = [pytest.mark.database, pytest.mark.django_db]


def test_a_statement_counts_with_its_characters_and_parameters():
    sql = "SELECT %s, %s"
    with counted() as counts, connection.cursor() as cursor:
        cursor.execute(sql, [1, 2])
    assert counts == {
        "statements": 1,
        "characters": len(sql),
        "parameters": 2,
        "as_sql": 0,
        "compile": 0,
    }


def test_a_query_and_its_subquery_are_compiled_once_each():
    newest = Message.stored.filter(session=OuterRef("pk")).values("seq")[:1]
    with counted() as counts:
        list(Session.objects.annotate(seq=Subquery(newest)))
    assert (counts["statements"], counts["as_sql"], counts["compile"]) == (1, 2, 0)


def test_an_expression_that_is_compiled_alone_counts():
    query = Query(Session)
    compiler = query.get_compiler(connection=connection)
    with counted() as counts:
        compiler.compile((F("seq") + 1).resolve_expression(Query(Message)))
    assert (counts["as_sql"], counts["compile"]) == (0, 1)


def test_other_threads_count_too_and_nothing_counts_afterwards():
    with counted() as counts:
        thread = threading.Thread(target=lambda: str(Session.objects.all().query))
        thread.start()
        thread.join()
    assert counts["as_sql"] == 1
    list(Session.objects.all())
    assert counts["as_sql"] == 1
