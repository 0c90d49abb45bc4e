"""Migrate, chat, visit the admin, vacuum and erase. Runs as a separate module."""

from __future__ import annotations

import sys
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile

import django
import pytest

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.management import CommandError, call_command, get_commands  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import Client, override_settings  # noqa: E402

from chatmemory import services  # noqa: E402
from chatmemory.live.runner import runner  # noqa: E402
from chatmemory.models import Maintenance, Message, Session, Turn, installed_models  # noqa: E402
from tests.admin.visits import talk_of  # noqa: E402


def run(name: str, *arguments: str, **options: object) -> str:
    output = StringIO()
    call_command(name, *arguments, stdout=output, stderr=output, **options)
    return output.getvalue()


run("migrate", verbosity=0)
run("check", fail_level="WARNING")
run("makemigrations", check_changes=True, dry_run=True)
assert not [name for name in connection.introspection.table_names() if "statistics" in name]
assert {model._meta.app_label for model in installed_models()} == {"chatmemory"}
assert "chatmemory_statistics" not in get_commands()

root = User.objects.create_superuser("root")
ann = User.objects.create_user("ann")
talk, other = talk_of(ann, "a", "b"), talk_of(None, "c", key="other")
client = Client()
client.force_login(root)
for path in (
    "",
    "chatmemory/",
    "chatmemory/session/",
    f"chatmemory/session/{talk.pk}/change/",
    f"chatmemory/session/action/purge/?session={talk.pk}",
    "chatmemory/job/",
    "chatmemory/auditentry/",
    "chatmemory/maintenance/",
    "chatmemory/maintenance/maintenance.csv",
    "chatmemory/maintenance/storage.csv",
):
    answer = client.get(f"/admin/{path}")
    assert answer.status_code == 200, path
    assert "statistics" not in answer.text.lower(), path
assert client.get("/admin/chatmemory_statistics/dailyturns/").status_code == 404

at = {"session_key": other.key, "scope": other.scope, "by": services.Actor.server("tests")}
services.admit_turn(**at, client_id="c1", content="Remove it.")
with override_settings(CHATMEMORY={"RESPONDER": "tests.core_alone.asking.graph"}):
    runner.run(other.pk)
turn = Turn.objects.get(client_id="c1")
assert (turn.status, turn.error) == ("failed", "no_checkpointer")

services.purge_session(**at, reason="")
with override_settings(CHATMEMORY={"UNDO_DAYS": 0}):
    run("chatmemory_vacuum")
run("chatmemory_erase", owner="ann", by="root", reason="asked")
assert not Session.objects.exists()
assert not Message.stored.exists()
with NamedTemporaryFile(suffix=".json") as file:
    Path(file.name).write_text('{"id": "a", "mapping": {}}')
    with pytest.raises(CommandError, match="1 invalid line skipped"):
        run("chatmemory_import", file.name, owner="root", by="root", reason="asked")
assert not Session.objects.exists()

for name in ("expire", "check", "audit_verify", "recover", "roles"):
    run(f"chatmemory_{name}")
assert {*Maintenance.objects.values_list("name", flat=True)} == {*Maintenance.Task.values}
apps = ("chatmemory.imports", "chatmemory.langgraph", "chatmemory.statistics", "ijson")
assert not [name for name in sys.modules if name.startswith(apps)]

# Otherwise Django adds the models to the app chatmemory, which contains the package.
for name in ("langgraph", "statistics"):
    with pytest.raises(ImproperlyConfigured, match=rf"Add chatmemory\.{name} to"):
        import_module(f"chatmemory.{name}.models")
assert {model._meta.app_label for model in installed_models()} == {"chatmemory"}
print("done")  # noqa: T201  # for the test that runs this
