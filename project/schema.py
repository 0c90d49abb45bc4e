"""The description of the REST API, generated once in a process: it takes a second of CPU time."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerSplitView


class OnceGenerator(SchemaGenerator):
    """Returns the same schema to each caller, whatever the query, and without a login."""

    def get_schema(self, request: Any = None, public: bool = False) -> Any:
        return _schema()


@cache
def _schema() -> Any:
    generator: Any = SchemaGenerator
    return generator().get_schema(public=True)


schema = require_safe(SpectacularJSONAPIView.as_view(generator_class=OnceGenerator))
docs = require_safe(SpectacularSwaggerSplitView.as_view())
