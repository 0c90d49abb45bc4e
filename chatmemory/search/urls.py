"""The URL of the search. The host project includes it under any prefix, such as that of REST."""

from __future__ import annotations

from django.urls import path, re_path

from chatmemory.api.unknown import Unknown
from chatmemory.search.api import Search

app_name = "chatmemory_search"

resources = [path("search/", Search.as_view(), name="search")]
"""The URLs that exist."""

# Also without a slash at the end: APPEND_SLASH would redirect a POST, which becomes a GET.
urlpatterns = [*resources, re_path(r"^search(/(?s:.+))?\Z", Unknown.as_view(), name="unknown")]
