"""The search of operators in the admin."""

from __future__ import annotations

from chatmemory.search.admin.model_admin import SearchAdmin

__all__ = ["SearchAdmin"]
