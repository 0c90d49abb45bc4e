"""What is counted."""

from __future__ import annotations

import time

import pytest

from chatmemory.rendering.budget import CHECK_EVERY, Budget


def fail_after(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    raise LookupError


@pytest.mark.regression
def test_uncounted_work_that_fails_is_not_counted(monkeypatch):
    monkeypatch.setattr("chatmemory.rendering.budget.MAX_SECONDS", 0.05)
    budget = Budget()
    with budget.timed():
        with pytest.raises(LookupError), budget.uncounted():
            fail_after(0.2)
        for _ in range(CHECK_EVERY):
            budget.count_step()
    assert not budget.is_spent
