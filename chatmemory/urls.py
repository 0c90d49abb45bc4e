"""The URLs of the chat pages. The host project includes them under any prefix."""

from __future__ import annotations

from django.urls import path

from chatmemory.pages import chats, own_data, views
from chatmemory.pages.catalog import Catalog

app_name = "chatmemory"

urlpatterns = [
    # Keys cannot contain a tilde.
    path("", views.new_session, name="chat"),
    path("~all/", chats.chat_list, name="all"),
    path("~archived/", chats.chat_list, {"archived": True}, name="archived"),
    path("~deleted/", chats.removed_list, name="removed"),
    path("~deleted/<int:undo>/restore/", chats.restore, name="restore"),
    path("~data/", own_data.own_data, name="own-data"),
    path("~data/export/", own_data.export, name="export"),
    path("~data/erase/", own_data.erase, name="erase"),
    path("~new/", views.new_session, name="new"),
    path("~adoption/", chats.adoption, name="adoption"),
    path("~words/<str:language>.js", Catalog.as_view(), name="catalog"),
    path("<str:key>/", views.session, name="session"),
    path("<str:key>/options/", chats.options, name="options"),
    path("<str:key>/rename/", chats.rename, name="rename"),
    path("<str:key>/pin/", chats.pin, {"pinned": True}, name="pin"),
    path("<str:key>/unpin/", chats.pin, {"pinned": False}, name="unpin"),
    path("<str:key>/archive/", chats.archive, name="archive"),
    path("<str:key>/unarchive/", chats.unarchive, name="unarchive"),
    path("<str:key>/delete/", chats.delete, name="delete"),
    path("<str:key>/html/", views.rendered, name="html"),
    path("<str:key>/<int:seq>/", views.message, name="message"),
]
