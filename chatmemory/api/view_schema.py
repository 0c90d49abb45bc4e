"""The description of the views in OpenAPI, if the host wants one."""

from __future__ import annotations

from django.apps import apps
from django.utils.module_loading import import_string
from rest_framework.schemas import DefaultSchema
from rest_framework.schemas.inspectors import ViewInspector
from rest_framework.views import APIView


class ViewSchema:
    """Describes the views by `openapi`, if the host has installed drf-spectacular."""

    def __get__(self, view: APIView | None, owner: type[APIView]) -> ViewInspector:
        if not apps.is_installed("drf_spectacular"):
            return DefaultSchema().__get__(view, owner)
        # By name: the import takes as long as the rest of the API, and few processes need it.
        schema: ViewInspector = import_string("chatmemory.api.openapi.OperationSchema")()
        return schema.__get__(view, owner)
