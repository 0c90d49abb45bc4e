"""The addresses of the demo."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import TemplateView

urlpatterns = [
    path("", TemplateView.as_view(template_name="home.html"), name="home"),
    path("accounts/", include("django.contrib.auth.urls")),
    path("chat/", include("chatmemory.urls")),
    path("api/", include("chatmemory.api.urls")),
    path("admin/", admin.site.urls),
]
