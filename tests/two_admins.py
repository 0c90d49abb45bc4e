"""A host with two admin sites, at /admin/ and /ops/."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.urls import path

from chatmemory.admin import MessageAdmin, SessionAdmin
from chatmemory.models import Message, Session
from project import urls

site = AdminSite("ops")
site.register(Session, SessionAdmin)
site.register(Message, MessageAdmin)

urlpatterns = [*urls.urlpatterns, path("ops/", site.urls)]
