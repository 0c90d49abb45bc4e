"""The list of threads in the admin, and how the app is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from io import StringIO

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.test import Client

from chatmemory.langgraph.apps import LangGraphConfig
from chatmemory.langgraph.models import Checkpoint, Thread
from tests.admin.visits import operator
from tests.factories import make_session

pytestmark = pytest.mark.django_db

LIST = "/admin/chatmemory_langgraph/thread/"


@pytest.mark.slow
def test_the_list_shows_threads_without_their_contents():
    session = make_session()
    ours = Thread.objects.create(thread_id="ours", key="1", session=session, low=1)
    Thread.objects.create(thread_id="anns", key="2", scope="user:7", low=1)
    Thread.objects.create(thread_id="gone", low=1)
    Checkpoint.objects.create(thread=ours, checkpoint_id="c", data=b"words", metadata=b"words")
    page = operator("view_thread").get(LIST).content.decode()
    assert f"conversation {session.pk}" in page
    assert [text in page for text in ("user:7", "anns", "gone", "words")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_list_needs_its_permission():
    assert operator("view_session").get(LIST).status_code == 403
    assert Client().get(LIST).status_code == 302
    call_command("chatmemory_roles", stdout=StringIO())
    group = Group.objects.get(name="Chat lead")
    assert group.permissions.filter(codename="view_thread").exists()


def test_no_row_can_be_changed_by_the_admin():
    thread = Thread.objects.create(thread_id="talk", key="1", scope="user:7", low=1)
    client = operator("view_thread")
    for page in (f"{thread.pk}/change/", f"{thread.pk}/delete/", "add/"):
        assert client.get(f"{LIST}{page}").status_code == 404


def test_the_app_names_the_missing_extra(monkeypatch):
    monkeypatch.setattr("chatmemory.langgraph.apps.find_spec", lambda name: None)
    config = LangGraphConfig("chatmemory.langgraph", import_module("chatmemory.langgraph"))
    with pytest.raises(ImproperlyConfigured, match=r"pip install \"django-chatmemory\[langgraph\]"):
        config.ready()


@pytest.mark.slow
def test_django_starts_without_importing_langgraph():
    program = (
        "import sys, django; django.setup(); import chatmemory.langgraph.admin; "
        "sys.exit(sum(name.startswith(('langgraph', 'langchain')) for name in sys.modules))"
    )
    environment = {"DJANGO_SETTINGS_MODULE": "project.settings", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False)  # noqa: S603
    assert done.returncode == 0
