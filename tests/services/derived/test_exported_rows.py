"""Exports that can be imported again have the rows of models that want it."""

from __future__ import annotations

import json
from io import BytesIO

import pytest
from django.core.management import call_command

from chatmemory import derived
from chatmemory.formats.exporting import export_sessions
from chatmemory.formats.importing import Lines, Target, import_lines
from chatmemory.models import Session
from chatmemory.services import append_messages
from tests.factories import BY, TALK, make_messages

pytestmark = pytest.mark.django_db


def test_an_import_counts_and_skips_exported_rows(shop):
    append_messages(**TALK, messages=make_messages("one", "two"), create=True)
    seen = derived.see(**TALK)
    assert derived.store(seen, [shop.Summary(low=1, high=2, text="a")])
    assert derived.store(seen, [shop.Summary(low=2, high=None, text="b")])
    assert derived.store(seen, [shop.SearchBlock(low=1, high=2, words="not exported")])
    text = "".join(export_sessions(Session.objects.all(), format="jsonl"))
    *_, first, second, end = map(json.loads, text.splitlines())
    model = {"type": "derived", "derived": "shop.Summary"}
    assert first == {**model, "low": 1, "high": 2, "values": {"text": "a"}}
    assert second == {**model, "low": 2, "high": None, "values": {"text": "b"}}
    assert end == {"type": "end", "turns": 0, "messages": 2, "derived": 2}
    target = Target(by=BY, scope=None, prefix="copy")
    (outcome,) = import_lines(Lines(BytesIO(text.encode())), target=target)
    assert (outcome.error, outcome.is_new, outcome.messages, outcome.derived) == (None, True, 2, 2)
    assert shop.Summary.objects.count() == 2


def test_the_command_names_what_it_ignored(shop, tmp_path, capsys):
    append_messages(**TALK, messages=make_messages("one", "two"), create=True)
    assert derived.store(derived.see(**TALK), [shop.Summary(low=1, high=2, text="a")])
    file = tmp_path / "export.jsonl"
    file.write_text("".join(export_sessions(Session.objects.all(), format="jsonl")))
    options = {"own_scopes": True, "prefix": "copy", "by": "ann", "reason": "move"}
    call_command("chatmemory_import", str(file), **options)
    assert "1 new, 0 already stored; 1 rows of other apps ignored" in capsys.readouterr().out
