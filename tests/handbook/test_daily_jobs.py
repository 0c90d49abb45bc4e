"""The daily jobs of docs/howto/daily-jobs.md: a crontab, systemd units, a CronJob of Kubernetes."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import stat
import subprocess

import pytest
import yaml

from chatmemory import services
from chatmemory.models import AuditEntry
from tests.blocks import block_with
from tests.factories import TALK, make_session
from tests.handbook.reading import check_command
from tests.management.commanding import run
from tests.systemd import analyze

pytestmark = pytest.mark.django_db

FIELDS = r"(?:\*|\d{1,2}) (?:\*|\d{1,2}) \* \* (?:\*|[0-6])"


@pytest.mark.slow
def test_daily_jobs(chapter, sign_in, tmp_path):
    rows = re.findall(
        r"^\| `(chatmemory_\w+)` \|[^|]*\| `([^`]+)` \| `([^`]+)` \|$", chapter.text, re.MULTILINE
    )
    times = {name: (cron, calendar) for name, cron, calendar in rows}
    assert len(times) == 3
    project, disk = tmp_path / "project", tmp_path / "disk"
    check_script(chapter, project, tmp_path / "env")
    make_head(chapter, disk)
    page = sign_in("Chat lead")
    page.click("Conversations")
    page.follow("Health")
    page = sign_in("Chat auditor")
    page.click("Audit entries")
    page.click("Health")
    jobs = crontab(chapter.file("cron", disk=str(disk)))
    assert {name: fields for fields, name, _ in jobs} == {
        name: cron for name, (cron, _) in times.items() if name != "chatmemory_recover"
    }
    check_jobs(jobs, disk)
    check_units(chapter, tmp_path, times)
    check_cron_job(chapter.file("yaml"), times)


def test_the_small_setup_runs_the_jobs_of_the_day():
    line = block_with("docs/start/small-setup.md", "15 3 * * *").text
    assert re.match(rf"{FIELDS}  /srv/example/manage ", line)
    assert check_command(line) == "chatmemory_maintain"


def make_head(chapter, disk):
    """Create the file as the page does; only its user reads it, and replaces it in the folder."""
    for _ in range(2):
        line = chapter.line("install", disk=str(disk), owner=f"-o {os.getuid()}")
        subprocess.run(shlex.split(line), check=True)  # noqa: S603  # our own page
    states = [path.stat() for path in (disk, disk / "head")]
    assert [stat.S_IMODE(state.st_mode) for state in states] == [0o700, 0o600]
    assert {state.st_uid for state in states} == {os.getuid()}
    assert states[1].st_size == 0


def check_script(chapter, project, settings):
    """Assert that the script passes its arguments and the environment to manage.py."""
    (project / ".venv/bin").mkdir(parents=True)
    settings.write_text("AUDIT_KEY=from-the-file\n")
    python = project / ".venv/bin/python"
    python.write_text('#!/bin/sh\necho "$AUDIT_KEY" "$PWD" "$@"\n')
    script = project / "manage"
    script.write_text(chapter.file("script", project=str(project), settings=str(settings)))
    for file in (python, script):
        file.chmod(0o700)
    done = subprocess.run(  # noqa: S603  # our own page
        [str(script), "chatmemory_statistics", "a b"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"from-the-file {project} manage.py chatmemory_statistics a b\n"


def crontab(text):
    """Return the fields, the name of the command and its options of each line."""
    name, *lines = text.splitlines()
    assert re.fullmatch(r"MAILTO=\S+@\S+", name)
    jobs = []
    for line in lines:
        found = re.fullmatch(rf"({FIELDS}) +(/srv/example/manage [^>%]+?)(?: >>\S+)?", line)
        assert found, line
        jobs.append((found[1], check_command(found[2]), shlex.split(found[2])[2:]))
    return jobs


def check_jobs(jobs, disk):
    """Assert that each job ends with 0, and that the verification finds what its file reveals."""
    make_session()
    services.trim_session(**TALK, keep_last=1, reason="a test")
    services.purge_session(**TALK, reason="a test")
    assert [run(name, *options)[0] for _, name, options in jobs] == [0] * len(jobs)
    assert (disk / "head").read_text().startswith("1:")
    [maintain] = [(name, options) for _, name, options in jobs if options]
    AuditEntry.objects.update(reason="another one")
    assert run(maintain[0], *maintain[1])[0] == 1
    (disk / "head").unlink()
    assert run(maintain[0], *maintain[1])[0] == 1


def check_units(chapter, folder, times):
    """Verify the units with systemd, if it is installed, and with a parser."""
    units = folder / "units"
    units.mkdir()
    manage = folder / "project/manage"
    for _ in range(3):
        text = chapter.file("ini", project=str(manage.parent))
        name = re.match(r"# /etc/systemd/system/(\S+)\n", text)[1]
        (units / name).write_text(text.replace("User=example\n", ""))
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.optionxform = str
        parser.read_string(text)
        if "Timer" in parser:
            assert parser["Timer"]["OnCalendar"] == times["chatmemory_maintain"][1]
        elif "User" in parser["Service"]:
            command = parser["Service"]["ExecStart"].replace(" $OPTIONS", "")
            assert shlex.split(command) == [str(manage), "chatmemory_%i"]
            options = re.search(r"for (\w+): OPTIONS=(.*)", text)
            check_command(f"manage chatmemory_{options[1]} {options[2]}")
    enabled = re.search(r"systemctl enable --now (\S+)`", chapter.text)[1]
    assert (units / enabled).exists()
    names = [f"chatmemory@{name.removeprefix('chatmemory_')}.service" for name in times]
    analyze("verify", "--man=no", "--generators=no", *names, enabled, path=units)
    for _, calendar in times.values():
        analyze("calendar", calendar, path=units)


def check_cron_job(text, times):
    """Assert that the manifest has the form of a CronJob, and that its command exists."""
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["restartPolicy"] in ("Never", "OnFailure")
    python, *rest = container["command"]
    assert python == "python"
    name = check_command(shlex.join(rest))
    assert job["spec"]["schedule"] == times[name][0]
    assert job["metadata"]["name"] == name.replace("_", "-")
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
    assert any(word.startswith(path) for word in rest for path in mounted.values())
