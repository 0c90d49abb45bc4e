"""The chat pages, to include wherever the host likes."""

from __future__ import annotations

from django.urls import path

from chatmemory.pages import views

app_name = "chatmemory"

urlpatterns = [
    path("", views.session_list, name="chat"),
    path("~new/", views.new_session, name="new"),  # no key has a tilde
    path("<str:key>/", views.session, name="session"),
    path("<str:key>/html/", views.rendered, name="html"),
    path("<str:key>/<int:seq>/", views.message, name="message"),
]
