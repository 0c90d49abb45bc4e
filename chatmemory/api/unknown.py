"""The view of unknown URLs, which answers like the others: with a problem."""

from __future__ import annotations

from typing import Any, Never

from django.http import Http404
from rest_framework.request import Request

from chatmemory.api.base import PublicView


class Unknown(PublicView):
    """Answers each method with 404. A host can use it for the other URLs of its API."""

    schema = None  # type: ignore[assignment]  # it is no operation, as REST framework expresses it

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> Never:
        raise Http404

    @property
    def default_response_headers(self) -> dict[str, str]:
        return {}  # without an `Allow`, which would be empty
