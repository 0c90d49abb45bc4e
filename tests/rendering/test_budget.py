"""What is counted."""

from __future__ import annotations

import time

import pytest

from chatmemory.rendering import budget as module
from chatmemory.rendering import markdown as rendering
from chatmemory.rendering.budget import CHECK_EVERY, Budget, Share
from chatmemory.rendering.markdown import markdown


def fail_after(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    raise LookupError


@pytest.mark.slow
@pytest.mark.regression
def test_uncounted_work_that_fails_is_not_counted(monkeypatch):
    monkeypatch.setattr("chatmemory.rendering.budget.MAX_SECONDS", 0.05)
    budget = Budget(Share())
    with budget.timed():
        with pytest.raises(LookupError), budget.uncounted():
            fail_after(0.2)
        for _ in range(CHECK_EVERY):
            budget.count_step()
    assert not budget.is_spent


@pytest.fixture
def minute(monkeypatch):
    """Return the number of the current minute, in a list that the test changes."""
    number = [7]
    monkeypatch.setattr(module, "_minute", lambda: number[0])
    monkeypatch.setattr(module, "_spent_by", module._Spent())
    rendering._cache.clear()
    return number


def test_all_texts_of_a_person_share_the_time_of_a_minute(minute):
    Share("ann").add(module.PERSON_SECONDS)
    assert markdown("*a*\n\n*b*", person="ann") == "<p>*a*<br>\n<br>\n*b*</p>\n"
    assert markdown("*c*", person="bob") == "<p><em>c</em></p>\n"
    assert markdown("*d*") == "<p><em>d</em></p>\n"


def test_a_text_that_was_refused_is_rendered_in_the_next_minute(minute):
    Share("ann").add(module.PERSON_SECONDS)
    assert markdown("*a*", person="ann") == "<p>*a*</p>\n"
    minute[0] += 1
    assert markdown("*a*", person="ann") == "<p><em>a</em></p>\n"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["*a* " * 500, "```java\n" + "a " * 2_000, "\n- a\n" * 500])
def test_the_time_of_a_text_is_counted(minute, text):
    markdown(text, person="ann")
    spent = module._spent_by.seconds("ann")
    assert spent > 0
    markdown(text, person="ann")  # from the cache
    assert module._spent_by.seconds("ann") == spent


def test_a_text_stops_when_others_of_the_person_spend_the_time(minute, monkeypatch):
    """As by concurrent requests: each text asks again while it is rendered."""
    budget = Budget(Share("ann"))
    budget.steps = CHECK_EVERY - 1
    with budget.timed():
        Share("ann").add(module.PERSON_SECONDS)
        with pytest.raises(module.OverBudget):
            budget.count_step()
    assert budget.is_refused
