"""The URLs of the chat pages. The host project includes them under any prefix."""

from __future__ import annotations

from django.urls import path

from chatmemory.pages import views

app_name = "chatmemory"

urlpatterns = [
    path("", views.session_list, name="chat"),
    path("~new/", views.new_session, name="new"),  # keys cannot contain a tilde
    path("<str:key>/", views.session, name="session"),
    path("<str:key>/html/", views.rendered, name="html"),
    path("<str:key>/<int:seq>/", views.message, name="message"),
]
