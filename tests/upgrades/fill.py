"""Fill an empty database with rows of every kind, and print what it contains.

`build.py` runs this program with the code of a release. It uses only that code and Django.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import django
from django.conf import settings

from tests.upgrades.contents import AUDIT_KEY, contents

APPS = ("chatmemory", "chatmemory.statistics", "chatmemory.imports")
RULES: dict[str, Any] = {"AUDIT_KEY": AUDIT_KEY, "ALLOW_ANONYMOUS": True, "VISITOR_DAYS": 3650}

settings.configure(
    SECRET_KEY="of the databases in tests/upgrades",  # no secret
    USE_TZ=True,
    DATABASES={"default": json.loads(os.environ["UPGRADE_DATABASE"])},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "channels",
        "rest_framework",
        *APPS,
    ],
    CHANNEL_LAYERS={"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}},
    CHATMEMORY=RULES,
)
django.setup()

from django.apps import apps  # noqa: E402  # after the setup
from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import transaction  # noqa: E402
from django.test import override_settings  # noqa: E402

import chatmemory  # noqa: E402
from chatmemory import services  # noqa: E402
from chatmemory.models import DatabaseNow, Message, Session, Turn  # noqa: E402
from chatmemory.services import SERVER, Actor, user_scope  # noqa: E402
from chatmemory.services.audit.entries import record_refusal  # noqa: E402
from chatmemory.services.audit.readings import record_reading  # noqa: E402
from chatmemory.services.audit.seals import audit_state  # noqa: E402
from chatmemory.services.jobs.claims import claim_of  # noqa: E402
from chatmemory.services.jobs.create import Order, create_job  # noqa: E402
from chatmemory.services.jobs.run import run_slice  # noqa: E402
from chatmemory.services.removal.vacuum import vacuum  # noqa: E402
from chatmemory.services.removal.withdrawal import withdraw_rows  # noqa: E402
from chatmemory.services.turns import claims, progress  # noqa: E402

OWNER = "fill"
"""The name of the process that runs the turns."""
WEATHER: list[Mapping[str, object]] = [
    {
        "role": "assistant",
        "content": "",
        "reasoning": "The tool knows the weather.",
        "tool_calls": [{"id": "w1", "name": "weather", "args": {"city": "Rome"}}],
    },
    {"role": "tool", "content": '{"sky": "clear", "°C": 24}', "tool_call_id": "w1"},
]
EVERY_ROLE: list[Mapping[str, object]] = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": [{"type": "text", "text": "Größe? 大小 🙂"}]},
    *WEATHER,
    {"role": "assistant", "content": "**Clear**, 24 °C.", "name": "bot"},
]


class Person:
    """A person with an account, and the calls of its sessions."""

    def __init__(self, name: str, **columns: Any) -> None:
        self.user = User.objects.create_user(name, password="secret", **columns)
        self.by = Actor.user(self.user)
        self.scope = user_scope(self.user)

    def at(self, key: str) -> dict[str, Any]:
        return {"session_key": key, "by": self.by}

    def talk(self, key: str, count: int = 2) -> Session:
        """Store a session with this number of messages."""
        rows = [
            {"role": ("user", "assistant")[n % 2], "content": f"{key} {n}"} for n in range(count)
        ]
        services.append_messages(**self.at(key), messages=rows, create=True)
        return self.session(key)

    def session(self, key: str) -> Session:
        return services.get_session(**self.at(key))


def admit(person: Person, key: str, turn: str, **more: Any) -> None:
    content = more.pop("content", f"{key} {turn}?")
    services.admit_turn(**person.at(key), client_id=turn, content=content, create=True, **more)


def start(person: Person, key: str) -> claims.Claim:
    """Claim the oldest waiting turn of a session, and start its run."""
    claim = claims.claim_next(session_pk=person.session(key).pk, owner=OWNER)
    if claim is None or not progress.start_turn(claim=claim):
        raise RuntimeError(f"no turn of {key} waits")
    return claim


def run(person: Person, key: str, turn: str, status: str = "complete", **more: Any) -> None:
    """Run a whole turn, which ends with this status."""
    rows: list[Mapping[str, object]] = more.pop("rows", [])
    error = more.pop("error", "")
    admit(person, key, turn, **more)
    claim = start(person, key)
    progress.add_rows(claim=claim, messages=rows, step=1)
    done = progress.finish_turn(
        claim=claim,
        status=status,
        message={"role": "assistant", "content": f"{key} {turn}."},
        error=error,
        model="demo-1",
        usage={"input_tokens": 12, "output_tokens": 7, "total_tokens": 19},
        first_text_ms=250,
    )
    if done is None:
        raise RuntimeError(f"the run of {key} has no fence")


def fill_turns(ann: Person) -> None:
    """Store turns of each status, versions, feedback."""
    run(ann, "talk", "t1")
    run(ann, "talk", "t2", rows=WEATHER)
    services.set_feedback(**ann.at("talk"), turn="t1", value=1)
    services.set_feedback(**ann.at("talk"), turn="t2", value=-1, reason="It rains.")
    run(ann, "edited", "e1")
    run(ann, "edited", "e2", replaces=1, expect_seq=1)
    run(ann, "failed", "f1", status="failed", error="model_error")
    run(ann, "interrupted", "i1", status="interrupted")
    run(ann, "stopped", "s1")
    admit(ann, "stopped", "s2")
    services.stop_turn(**ann.at("stopped"), turn="s2")
    # A process died: this turn is running, two wait, and so does a batch behind them.
    admit(ann, "running", "r1")
    claim = start(ann, "running")
    progress.save_partial(claim=claim, text="running r1, the first half", step=1)
    for turn in ("r2", "r3", "r4"):
        admit(ann, "running", turn, if_busy="queue")
    services.append_messages(
        **ann.at("running"),
        messages=[{"role": "assistant", "content": "Your order was shipped."}],
        client_id="shipped",
        if_busy="defer",
    )


def fill_removals(ann: Person, operator: Actor) -> None:
    """Store sessions of which something was removed."""
    reason: dict[str, Any] = {"reason": "of the fill"}
    ann.talk("vacuumed", 6)
    services.trim_session(**ann.at("vacuumed"), keep_last=2, **reason)
    with override_settings(CHATMEMORY={**RULES, "UNDO_DAYS": 0}):
        vacuum()
    services.stop_turn(**ann.at("running"), turn="r3")  # after the vacuum, which deletes such turns
    for key in ("trimmed", "cleared", "purged", "redacted", "withdrawn"):
        ann.talk(key, 6)
    services.trim_session(**ann.at("trimmed"), keep_last=2, **reason)
    services.clear_session(**ann.at("cleared"), **reason)
    services.purge_session(**ann.at("purged"), **reason)
    staff: dict[str, Any] = {"by": operator, "scope": ann.scope, **reason}
    services.redact_message(session_key="redacted", seq=3, **staff)
    with transaction.atomic():
        withdraw_rows(Session.objects.select_for_update().get(key="withdrawn"), 5, 6)


def fill_states(ann: Person, operator: Actor) -> None:
    """Store sessions in each state, with tags and notes."""
    staff: dict[str, Any] = {"by": operator, "scope": ann.scope, "reason": "of the fill"}
    for key in ("held", "archived", "tagged", "pinned"):
        ann.talk(key)
    services.hold_session(session_key="held", **staff)
    services.archive_session(**ann.at("archived"), reason="of the fill")
    services.tag_session(session_key="tagged", tag="vip", **staff)
    services.add_note(session_key="tagged", text="Called, all is well.", **staff)
    services.update_session(**ann.at("pinned"), pinned=True, title="Größe 🙂")
    services.open_session(
        **ann.at("described"),
        title="Weather",
        instructions="Answer briefly.",
        metadata={"team": "gold", "n": 1.5},
        ttl_seconds=2**31 - 1,
    )
    ann.talk("expired")
    Session.objects.filter(key="expired").update(expires_at=DatabaseNow() - timedelta(hours=1))
    services.append_messages(
        session_key="roles",
        by=Actor.server("shop"),
        scope=SERVER,
        messages=EVERY_ROLE,
        author="operator:2",
        client_id="every-role",
        create=True,
    )


def fill_people(ann: Person, operator: Actor) -> None:
    """Store visitors, a ticket, and what erasures leave."""
    for number in range(2):
        token = services.create_visitor(network="192.0.2.0").token
        visitor = Actor.visitor(token)
        services.append_messages(
            session_key=f"visit{number}",
            by=visitor,
            messages=[{"role": "user", "content": f"Hello {number}"}],
            create=True,
        )
        if number:
            services.adopt_visitor(by=ann.by, visitor=visitor)
    services.issue_ticket(by=ann.by, key="talk")
    bob, eve = Person("bob"), Person("eve")
    bob.talk("secret")
    eve.talk("last")
    services.erase_person(by=operator, scope=bob.scope, reason="a request")
    with services.deleting_users(by=operator):
        eve.user.delete()


def fill_jobs(ann: Person, operator: Actor) -> None:
    """Store a job that ended and one that waits, readings and a refusal."""
    ann.talk("job", 4)
    chosen = Session.objects.filter(key="job")
    order = Order(by=operator, reason="of the fill", owner=OWNER)
    job = create_job(action="trim", sessions=chosen, order=order, params={"keep_last": 2})
    run_slice(claim_of(job))
    later = Order(by=operator, reason="of the fill")
    create_job(action="archive", sessions=chosen, order=later, params={})
    record_reading(session=chosen[0], by=operator, from_seq=1, to_seq=2)
    record_reading(session=chosen[0], by=operator, from_seq=3, to_seq=4)
    record_refusal(by=operator, permission="purge_history", session=chosen[0])


def age(model: Any, *columns: str) -> None:
    """Move times of all rows an hour back: statistics leave out the last five minutes."""
    for row in model._base_manager.all():
        for column in columns:
            if getattr(row, column) is not None:
                setattr(row, column, getattr(row, column) - timedelta(hours=1))
        row.save(update_fields=columns)


def histories() -> dict[str, list[str]]:
    """Return the texts of each session that can be read, by scope and key."""
    sessions = Session.objects.exclude(scope__startswith="removed:").order_by("pk")
    return {
        f"{one.scope} {one.key}": [
            row.text
            for row in services.read_history(
                session_key=one.key, by=Actor.server("fill"), scope=one.scope
            ).rows
        ]
        for one in sessions
        if one.key != "expired"
    }


def check() -> None:
    """Check that the database has every kind of row. Raises RuntimeError."""
    models = [model for app in APPS for model in _models(app)]
    empty = [model.__name__ for model in models if not model._base_manager.exists()]
    missing = [
        f"{column} {value}"
        for column, values, found in (
            ("turn", Turn.Status.values, Turn.objects.values_list("status", flat=True)),
            ("message", Message.Status.values, Message.stored.values_list("status", flat=True)),
            ("message", Message.Role.values, Message.stored.values_list("role", flat=True)),
        )
        for value in {*values} - {*found}
    ]
    if empty or missing:
        raise RuntimeError(f"no rows of {empty + missing}")


def _models(app: str) -> list[Any]:
    return [*apps.get_app_config(app.replace(".", "_")).get_models()]


def main() -> None:
    call_command("migrate", verbosity=0)
    ann = Person("ann")
    staff = Person("sam", is_staff=True, is_superuser=True)
    operator = Actor.operator(staff.user)
    fill_turns(ann)
    age(Turn, "created_at", "started_at", "ended_at")
    age(Message, "created_at")
    age(Session, "created_at", "last_message_at")
    call_command("chatmemory_statistics", stdout=sys.stderr)
    fill_removals(ann, operator)
    fill_states(ann, operator)
    fill_people(ann, operator)
    call_command("chatmemory_maintain", stdout=sys.stderr)  # seals, and the times of the runs
    fill_jobs(ann, operator)
    check()
    json.dump(
        {
            "version": chatmemory.__version__,
            "code": chatmemory.__file__,
            "head": audit_state().head,
            "histories": histories(),
            "contents": contents(),
        },
        sys.stdout,
        indent=1,
        ensure_ascii=False,
    )


main()
