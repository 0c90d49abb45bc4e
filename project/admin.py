"""The admin of the demo: users are deleted with their chat sessions in view."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User

from chatmemory.admin import ChatMemoryUserAdminMixin

admin.site.unregister(User)


@admin.register(User)
class DemoUserAdmin(ChatMemoryUserAdminMixin, UserAdmin):  # type: ignore[type-arg]  # has no runtime generics
    """Lists the sessions of users who are to be deleted."""
