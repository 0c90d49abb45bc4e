"""The addresses of the demo with those of Grappelli, which its pages need."""

from __future__ import annotations

from django.urls import include, path

from project import urls

urlpatterns = [path("grappelli/", include("grappelli.urls")), *urls.urlpatterns]
