"""`check_derived_rows` passes for models that follow their messages, and fails for others."""

from __future__ import annotations

import pytest

from chatmemory.testing.derived import check_derived_rows

pytestmark = pytest.mark.django_db


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Summary", "SearchBlock", "Attachment"])
def test_the_models_of_the_shop_follow_their_messages(shop, name):
    check_derived_rows(getattr(shop, name))


@pytest.mark.slow
def test_a_project_needs_no_setting_of_ours(shop, settings):
    del settings.CHATMEMORY
    check_derived_rows(shop.Summary)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "event"),
    [("forget_words", "redact"), ("delete_below", "trim"), ("delete_restored", "restore_database")],
)
def test_a_service_that_forgets_the_rows_is_found(shop, monkeypatch, function, event):
    modules = ("removal.content", "removal.vacuum", "erasure.erasure")
    for module in (*modules, "integrity.database_restore"):
        monkeypatch.setattr(
            f"chatmemory.services.{module}.{function}", lambda *_: None, raising=False
        )
    with pytest.raises(AssertionError, match=f"^shop.Summary still contains .* after {event}"):
        check_derived_rows(shop.Summary)


def test_a_row_that_keeps_words_in_a_tombstone_is_found(shop, monkeypatch):
    emptied = shop.Attachment.emptied()
    del emptied["caption"]
    monkeypatch.setattr(shop.Attachment, "emptied", lambda: emptied)
    with pytest.raises(AssertionError, match=r"^shop.Attachment still contains .* after redact\.$"):
        check_derived_rows(shop.Attachment)
