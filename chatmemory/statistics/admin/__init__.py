"""The page of statistics in the admin."""

from __future__ import annotations

from chatmemory.statistics.admin.page import StatisticsAdmin

__all__ = ["StatisticsAdmin"]
