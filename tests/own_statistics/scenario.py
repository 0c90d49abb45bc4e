"""Use both apps side by side. Runs as a separate module."""

from __future__ import annotations

from io import StringIO

import django

django.setup()

from django.contrib.auth.models import Group, Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402

from chatmemory.models import installed_models  # noqa: E402
from chatmemory.statistics.models import DailyTurns  # noqa: E402
from tests.own_statistics.models import DailyTurns as OwnDailyTurns  # noqa: E402

OWN, OURS = "/admin/statistics/dailyturns/", "/admin/chatmemory_statistics/dailyturns/"

call_command("migrate", run_syncdb=True, verbosity=0)
call_command("check", fail_level="WARNING", stdout=StringIO())
OwnDailyTurns._default_manager.create(turns=1)
call_command("chatmemory_statistics", stdout=StringIO())
assert not DailyTurns.objects.exists()
assert OwnDailyTurns not in installed_models()

call_command("chatmemory_roles", stdout=StringIO())
permissions = Group.objects.get(name="Chat auditor").permissions
of_apps = permissions.filter(codename="view_statistics")
assert [one.content_type.app_label for one in of_apps] == ["chatmemory_statistics"]


def statuses(app: str, *codenames: str) -> list[int]:
    """Return the statuses of both pages for an operator with permissions of one app."""
    user = User.objects.create_user(f"of {app}", is_staff=True)
    found = Permission.objects.filter(content_type__app_label=app, codename__in=codenames)
    user.user_permissions.set(found)
    client = Client()
    client.force_login(user)
    return [client.get(address).status_code for address in (OWN, OURS)]


assert statuses("statistics", "view_statistics", "view_dailyturns") == [200, 403]
assert statuses("chatmemory_statistics", "view_statistics") == [403, 200]
print("done")  # noqa: T201  # for the test that runs this
