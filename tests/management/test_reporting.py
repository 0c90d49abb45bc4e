"""JSON, progress and exit statuses of the commands that already existed."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class

from chatmemory import services
from chatmemory.management.progress import ProgressBar
from chatmemory.management.reporting import ReportingCommand
from chatmemory.models import Session
from chatmemory.services import SERVER
from chatmemory.services.audit.seals import seal_audit
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.management.commanding import WHO, run, run_json
from tests.services.jobs.ordering import make_talks

INTERACTIVE = {"chatmemory_chat", "chatmemory_runner"}
"""Commands whose output is no result."""


def test_each_command_with_a_result_has_json():
    names = {
        name for name, app in get_commands().items() if app.startswith("chatmemory")
    } - INTERACTIVE
    assert len(names) >= 10
    for name in names:
        assert isinstance(load_command_class(get_commands()[name], name), ReportingCommand), name


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("expire", {"removed", "left", "dry_run"}),
        ("vacuum", {"findings", "sealed", "unsealed", "head"}),
        ("audit_verify", {"findings", "sealed", "unsealed", "head"}),
        ("check", {"found", "fixed"}),
        ("statistics", {"turns", "messages", "sessions", "feedback", "until"}),
        ("recover", {"interrupted", "requeued", "cancelled", "failed"}),
    ],
)
def test_the_last_line_of_json_is_the_result(command, keys):
    make_talks(2)
    status, lines = run_json(f"chatmemory_{command}")
    assert (status, lines[-1].keys()) == (0, keys)


@pytest.mark.django_db
def test_an_erasure_and_its_receipt_in_json():
    ann = make_user("ann")
    make_session(owner=ann)
    held = make_session("held", owner=ann)
    services.hold_session(session_pk=held.pk, **{**TALK, "scope": held.scope}, reason="")
    status, (planned,) = run_json("chatmemory_erase", owner="ann", dry_run=True, **WHO)
    assert (status, planned["receipt"], planned["held"]) == (1, None, {str(held.pk): "held"})
    status, (erased,) = run_json("chatmemory_erase", owner="ann", **WHO)
    assert (status, erased["sessions"], erased["held"]) == (1, 1, {str(held.pk): "held"})
    status, (line, total) = run_json("chatmemory_erased", owner="ann")
    assert (status, line["entry_pk"], total["is_erased"]) == (0, erased["receipt"], True)


@pytest.mark.django_db
def test_an_export_and_import_in_json(tmp_path):
    make_talks(2)
    make_user("ann")
    file = tmp_path / "all.jsonl"
    assert run("chatmemory_export", "--json", all=True, **WHO) == (2, "")
    _, (line,) = run_json("chatmemory_export", "--all", output=str(file), **WHO)
    assert (line["sessions"], line["messages"]) == (2, 8)
    _, (line,) = run_json("chatmemory_import", file, owner="ann", prefix="new", **WHO)
    assert (line["new"], line["messages"], line["dry_run"]) == (2, 8, False)


@pytest.mark.django_db
def test_a_restored_database_and_roles_in_json():
    make_talks(2)
    _, (line,) = run_json("chatmemory_restored", **WHO)
    assert (line["sessions"], line["erasures"]["erasures"]) == (2, 0)
    _, lines = run_json("chatmemory_roles", dry_run=True)
    assert "view_session" in lines[0]["permissions"]


def progress_of(command, *args, **options):
    """Return the lines of the progress."""
    err = StringIO()
    call_command(
        f"chatmemory_{command}", *args, progress=True, stdout=StringIO(), stderr=err, **options
    )
    return err.getvalue().splitlines()


@pytest.mark.slow
@pytest.mark.django_db
def test_each_long_command_shows_its_progress(tmp_path, settings):
    talks = make_talks(3)
    make_user("ann")
    assert progress_of("check")[-1] == "100%  3 of 3"
    assert progress_of("restored", **WHO)[-1] == "100%  3 of 3"
    assert seal_audit() == 1
    assert progress_of("audit_verify")[-1] == "100%  1 of 1"
    file = str(tmp_path / "all.jsonl")
    assert progress_of("export", "--all", output=file, **WHO)[-1] == "100%  3 of 3"
    imported = progress_of("import", file, owner="ann", **WHO)[-1]
    assert imported.startswith("100%  3 conversations, 12 messages")
    assert progress_of("erase", owner="ann", **WHO)[-1] == "100%  3 of 3"
    services.hold_session(session_key="talk-0", scope=SERVER, by=BY, reason="")
    settings.CHATMEMORY = {"RETENTION": [{"max_messages": 2}]}
    assert progress_of("expire")[-1] == "100%  2 of 2"
    assert "100%  2 of 2" in progress_of("vacuum")
    assert progress_of("statistics")[-1] == "0"
    assert Session.objects.count() == len(talks)


class Terminal(StringIO):
    def isatty(self):
        return True


class Out(StringIO):
    """What Django's OutputWrapper offers to the bar."""

    def write(self, text, style_func=None, ending=None):
        super().write(text + ("\n" if ending is None else ending))


class Screen(Out, Terminal):
    pass


def test_a_bar_is_drawn_on_a_terminal_and_removed():
    screen = Screen()
    bar = ProgressBar(screen, is_wanted=None)
    bar.show(1, 2)
    bar.clear()
    assert screen.getvalue() == f"\r\x1b[K[{'#' * 15}{' ' * 15}]  50%  1 of 2\r\x1b[K"


def test_nothing_is_shown_on_a_terminal_if_it_is_not_wanted():
    screen = Screen()
    bar = ProgressBar(screen, is_wanted=False)
    bar.show(1, 2)
    bar.clear()
    assert screen.getvalue() == ""


def test_a_total_of_zero_is_complete():
    out = Out()
    ProgressBar(out, is_wanted=True).show(0, 0)
    assert out.getvalue() == "100%  0 of 0\n"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("statistics", {"chunk": 0}),
        ("vacuum", {"pause": -1.0}),
        ("erase", {"scope": "nonsense", **WHO}),
        ("erase", {"scope": "user:7", **WHO, "reason": " "}),
        ("export", {"all": True, "key": "a", **WHO}),
        ("erased", {"scope": ""}),
    ],
)
def test_wrong_options_have_their_own_status(command, arguments):
    with pytest.raises(CommandError) as refused:
        call_command(f"chatmemory_{command}", **arguments)
    assert refused.value.returncode == 2


@pytest.mark.django_db
def test_findings_in_json_come_before_the_result():
    make_session()
    services.append_messages(**TALK, messages=make_messages("a"))
    Session.objects.update(tokens=77)
    status, lines = run_json("chatmemory_check")
    assert status == 1
    assert [line["code"] for line in lines[:-1]] == ["tokens"]
    assert json.dumps(lines[-1]) == '{"found": {"tokens": 1}, "fixed": {}}'
