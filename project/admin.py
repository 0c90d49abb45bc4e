"""The demo's admin, which lists a user's chat sessions before it deletes the user."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.utils.translation import gettext_lazy as _

from chatmemory.admin import ChatMemoryUserAdminMixin

admin.site.site_header = admin.site.site_title = _("Shop support")
admin.site.unregister(User)


@admin.register(User)
class DemoUserAdmin(ChatMemoryUserAdminMixin, UserAdmin):  # type: ignore[type-arg]  # has no runtime generics
    """The user admin with the mixin of chatmemory."""
