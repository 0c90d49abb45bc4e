"""Fixtures of the tests of streams."""

from __future__ import annotations

from tests.live.conftest import page_reads

__all__ = ["page_reads"]
