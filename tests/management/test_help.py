"""The help of the commands, which operators read."""

from __future__ import annotations

import pytest
from django.core.management import get_commands, load_command_class

from tests.admin.test_words import SESSION

COMMANDS = {name: app for name, app in get_commands().items() if name.startswith("chatmemory_")}
FOR_DEVELOPERS = {"chatmemory_chat"}
"""A client of the protocol, whose sessions they are."""


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - FOR_DEVELOPERS))
def test_the_help_calls_a_session_a_conversation(name):
    parser = load_command_class(COMMANDS[name], name).create_parser("manage.py", name)
    texts = [parser.description, *(action.help for action in parser._actions)]
    assert any(texts)
    assert [text for text in texts if text and SESSION.search(text.replace("--session", ""))] == []
