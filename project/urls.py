"""The addresses of the demo."""

from __future__ import annotations

from importlib.util import find_spec

from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import TemplateView

from chatmemory.api.unknown import Unknown
from chatmemory.csp import with_policy
from project.demo_suggestions import SHOP

home = TemplateView.as_view(template_name="home.html")
shop = TemplateView.as_view(
    template_name="shop.html",
    extra_context={"suggestions": SHOP if settings.RESPONDER == settings.DEMO_BOT else []},
)

urlpatterns = [
    path("", with_policy(home), name="home"),
    path("shop/", with_policy(shop), name="shop"),
    path("accounts/", include("chatmemory.accounts")),
    path("chat/", include("chatmemory.urls")),
    path("api/", include("chatmemory.streams.urls")),
    path("api/", include("chatmemory.api.urls")),
    path("admin/", admin.site.urls),
]

if apps.is_installed("drf_spectacular_sidecar"):  # the extra `openapi`
    from project import schema

    urlpatterns += [
        path("api/schema/", schema.schema, name="schema"),
        path("api/docs/", schema.docs, name="api-docs"),
    ]

if apps.is_installed("chatmemory.search"):
    urlpatterns += [path("api/", include("chatmemory.search.urls"))]

if apps.is_installed("chatmemory.search") and find_spec("mcp"):  # the extra `mcp`
    from chatmemory.search.mcp import memory_server

    urlpatterns += [path("mcp/", memory_server, name="mcp")]

# All other URLs of the API get its errors in JSON, instead of a page.
urlpatterns += [re_path("^api/", Unknown.as_view())]
