"""Conversion of positional parameters to named ones."""

from __future__ import annotations

from chatmemory.database.sql import with_names


def test_positional_parameters_get_numbered_names():
    assert with_names("a = %s AND b > %s", (1, "x"), "is") == (
        "a = %(is_1)s AND b > %(is_2)s",
        {"is_1": 1, "is_2": "x"},
    )


def test_a_literal_percent_sign_stays_doubled():
    sql, named = with_names("strftime('%%Y', %s) AND a %%s", (1,), "at")
    assert sql == "strftime('%%Y', %(at_1)s) AND a %%s"
    assert sql % {"at_1": ":at_1"} == "strftime('%Y', :at_1) AND a %s"
    assert named == {"at_1": 1}
