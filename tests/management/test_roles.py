"""The groups of common roles, and that each permission has an effect."""

from __future__ import annotations

from io import StringIO

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.management import CommandError, call_command

from chatmemory.admin import SessionAdmin
from chatmemory.management.roles import ROLES, roles
from tests.admin.test_admin_rights import PAGES

pytestmark = pytest.mark.django_db


def of_app():
    found = Permission.objects.filter(content_type__app_label="chatmemory")
    return set(found.values_list("codename", flat=True))


def run(**options):
    out = StringIO()
    call_command("chatmemory_roles", stdout=out, **options)
    return out.getvalue()


def test_each_permission_has_a_method_which_a_host_may_override():
    for codename in of_app() - {"view_session", "view_audit", "view_health"}:
        assert callable(getattr(SessionAdmin, f"has_{codename}_permission")), codename


def test_each_permission_opens_a_page():
    assert {name for page in PAGES.values() for name in page.needs} >= of_app()


def test_the_command_creates_the_groups_and_repeats_without_effect():
    text = run()
    assert "Chat auditor got 3 permissions: view_audit, view_health, view_statistics" in text
    for name, permissions in roles().items():
        granted = Group.objects.get(name=name).permissions.select_related("content_type")
        assert {f"{one.content_type.app_label}.{one.codename}" for one in granted} == {*permissions}
    assert run().count("got 0 permissions: nothing new") == len(ROLES)


def test_a_group_keeps_what_the_project_changed():
    run()
    group = Group.objects.get(name="Chat auditor")
    group.permissions.set(Permission.objects.filter(codename="view_user"))
    run()
    granted = set(group.permissions.values_list("codename", flat=True))
    assert granted == {"view_user", "view_audit", "view_health", "view_statistics"}


def test_a_dry_run_changes_nothing():
    assert "Chat support would get 6 permissions" in run(dry_run=True)
    assert not Group.objects.exists()


def test_without_the_permissions_no_group_is_created():
    Permission.objects.filter(codename="view_health").delete()
    with pytest.raises(CommandError, match="Run migrate first"):
        run()
    assert not Group.objects.exists()
