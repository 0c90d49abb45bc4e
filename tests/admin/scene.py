"""A console full of data: sessions in each state, jobs, people, audit, statistics; its pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from chatmemory import services
from chatmemory.langgraph.models import Thread
from chatmemory.models import (
    AuditEntry,
    Job,
    Maintenance,
    Message,
    Session,
    Turn,
    installed_models,
)
from chatmemory.services import Actor
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.jobs.claims import claim_job
from chatmemory.services.jobs.create import Order, create_job
from chatmemory.services.jobs.run import run_slice
from chatmemory.services.turns.progress import finish_turn, save_partial, start_turn
from chatmemory.statistics.models import DailyActivity, DailyTurns
from chatmemory.statistics.roll_up import roll_up_statistics
from tests.factories import make_messages, make_session, make_user

REPLY = """A **bold** word, [a link](https://example.com/) and a list:

1. first
2. second

```python
print("a line that is longer than the window of a phone, so that its block scrolls in the page")
```

| Order | State | Sum |
|---|:-:|--:|
| 4711 | sent | 12.50 |
| 4712 | waiting for the customer, who has not answered for three weeks | 9.99 |
"""
LONG = "n" * 200
"""A word that cannot be broken at a space."""

FIGURES = "chatmemory_statistics/dailyturns"
"""The path of the page of statistics in the admin."""
THREADS = "chatmemory_langgraph/thread"
"""The path of the list of threads in the admin."""

SEARCH = "chatmemory_search/searchblock"
"""The path of the search in messages in the admin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The rows that the addresses of `PAGES` name."""

    root: User
    cookie: str
    """The Django session of a superuser."""
    ann: User
    talk: Session
    running: Session
    purged: Session
    archived: Session
    held: Session
    server: Session
    done: Job
    busy: Job
    entry: AuditEntry
    message: Message
    unstored: Turn

    def address(self, path: str) -> str:
        """Return the URL of a page, for a path with names of rows in braces."""
        pks = {name: getattr(self, name).pk for name in ROWS}
        scope = services.user_scope(self.ann)
        app = "" if path.startswith((FIGURES, SEARCH, THREADS)) else "chatmemory/"
        return f"/admin/{app}{path.format(scope=scope, **pks)}"


ROWS = (
    *("talk", "running", "purged", "archived", "held", "server"),
    *("done", "busy", "entry", "message", "unstored"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page, and the buttons and links that it must offer."""

    name: str
    path: str
    offers: tuple[str, ...] = ()
    menu: tuple[str, ...] = ()
    """What its menu must offer."""
    is_audited: bool = True
    """Whether axe-core checks it, which takes most of the time; False for a page like another."""


SIDE = ("Source", "Add note", "‹ Previous", "Next ›")  # noqa: RUF001  # arrows
GENERAL = ("Export…", "Manage ▾", "Audit", "Admin log")
MENU = ("Trim…", "Clear…", "Purge…", "Tags…", "Archive…")
"""What the menu of a session has, which is closed at first."""
ON = {
    "restore": "purged",
    "release": "held",
    "unarchive": "archived",
    "stop": "running",
    "end": "running",
}
"""The session on which an action has an effect; elsewhere it is `talk`."""


def _action_pages() -> Iterator[Page]:
    for name in (*ACTIONS, "export"):
        session = ON.get(name, "talk")
        path = f"session/action/{name}/?session={{{session}}}&session={{held}}&session={{server}}"
        offers = ("Preview", "Cancel") if name in ("trim", "tag", "untag") else ("Cancel",)
        is_audited = name in ("trim", "purge", "tag", "export")
        yield Page(name=f"action {name}", path=path, offers=offers, is_audited=is_audited)
        is_audited = name in ("trim", "purge")
        path = f"session/action/{name}/?session={{{session}}}"
        yield Page(name=f"action {name} one", path=path, offers=offers, is_audited=is_audited)


PERSON = ("Search in messages…", "Export…", "Erase…")
SESSION = "session/<path:object_id>/change/"
PAGES: dict[str, tuple[Page, ...]] = {
    "session/": (
        Page(name="list", path="session/", offers=("People", "Search", "Filters")),
        Page(
            name="list of none",
            path="session/?q=nothing",
            offers=("People", "Show all", "Search in messages…"),
            is_audited=False,
        ),
    ),
    SESSION: (
        Page(
            name="conversation",
            path="session/{talk}/change/?removed=1",
            offers=(*GENERAL, *SIDE, "Undo…", "Hide the removed messages"),
            menu=(*MENU, "Restore…", "Put on hold…"),
        ),
        Page(
            name="conversation running",
            path="session/{running}/change/",
            offers=("Refresh", *GENERAL, *SIDE),
            menu=(*MENU, "Stop reply…"),
        ),
        Page(
            name="conversation purged",
            path="session/{purged}/change/",
            offers=("Show the removed messages", "Undo…", *GENERAL),
            menu=("Restore…", "Tags…"),
        ),
        Page(
            name="conversation held",
            path="session/{held}/change/",
            menu=("Release…",),
            is_audited=False,
        ),
        Page(
            name="conversation of the server",
            path="session/{server}/change/",
            offers=GENERAL,
            is_audited=False,
        ),
    ),
    "session/<path:object_id>/history/": (Page(name="log", path="session/{talk}/history/"),),
    "session/people/": (
        Page(name="people", path="session/people/?q=eva", offers=("Find",)),
        Page(name="people erased", path="session/people/?q=gone-1", offers=("Find",)),
    ),
    "session/person/": (Page(name="person", path="session/person/?scope={scope}", offers=PERSON),),
    "session/person/export/": (
        Page(
            name="person export",
            path="session/person/export/?scope={scope}",
            offers=("Download", "Back"),
        ),
    ),
    "session/person/erase/": (
        Page(
            name="person erase",
            path="session/person/erase/?scope={scope}",
            offers=("Erase permanently", "Cancel"),
        ),
    ),
    "session/<int:pk>/messages/<int:seq>/": (
        Page(name="message", path="session/{talk}/messages/6/"),
    ),
    "session/<int:pk>/messages/<int:seq>/redact/": (
        Page(
            name="redact",
            path="session/{talk}/messages/6/redact/",
            offers=("Find the text", "Redact", "Cancel"),
        ),
    ),
    "session/<int:pk>/turns/<int:turn>/redact/": (
        Page(
            name="redact a turn",
            path="session/{talk}/turns/{unstored}/redact/",
            offers=("Find the text", "Redact", "Cancel"),
        ),
    ),
    "session/<int:pk>/search/": (
        Page(name="search", path="session/{talk}/search/?q=order", offers=("Search",)),
    ),
    "session/<int:pk>/tags/": (
        Page(name="tags", path="session/{talk}/tags/", offers=("Add this tag", "Remove this tag")),
    ),
    "session/action/<str:action>/": tuple(_action_pages()),
    "session/jobs/<int:pk>/": (
        Page(name="job", path="session/jobs/{done}/", offers=("Undo…", "Conversations")),
        Page(name="job running", path="session/jobs/{busy}/", offers=("Cancel this job",)),
    ),
    "session/jobs/<int:pk>/undo/": (
        Page(
            name="undo",
            path="session/jobs/{done}/undo/",
            offers=("Undo in 2 conversations", "Cancel"),
        ),
    ),
    "job/": (Page(name="jobs", path="job/"),),
    "message/<path:object_id>/history/": (
        Page(name="log of a message", path="message/{message}/history/", is_audited=False),
    ),
    "auditentry/": (
        Page(name="audit", path="auditentry/", offers=("Readings", "CSV", "Verify…", "Search")),
        Page(name="audit readings", path="auditentry/?action_is=read", is_audited=False),
    ),
    "auditentry/verify/": (Page(name="verify", path="auditentry/verify/", offers=("Verify",)),),
    "auditentry/<path:object_id>/change/": (
        Page(name="audit entry", path="auditentry/{entry}/change/"),
    ),
    "auditentry/<path:object_id>/history/": (
        Page(name="log of an entry", path="auditentry/{entry}/history/", is_audited=False),
    ),
    f"{FIGURES}/": (Page(name="statistics", path=f"{FIGURES}/?days=7", offers=("Show",)),),
    f"{SEARCH}/": (
        Page(
            name="search in messages",
            path=f"{SEARCH}/?owner_is={{scope}}&state=held",
            offers=("Search", "Cancel"),
        ),
        Page(name="search in nothing", path=f"{SEARCH}/", offers=("People",)),
    ),
    f"{THREADS}/": (Page(name="threads", path=f"{THREADS}/"),),
    "maintenance/": (Page(name="health", path="maintenance/"),),
}
"""Examples of each page, by its model and route."""

MASKED = (
    Page(name="list masked", path="session/"),
    Page(
        name="conversation masked",
        path="session/{talk}/change/",
        offers=("Reveal…", *GENERAL),
        menu=MENU,
    ),
    Page(name="reveal", path="session/{talk}/reveal/", offers=("Reveal", "Cancel")),
)
"""The pages that differ if TRANSCRIPTS is masked."""

NO_PAGES = {
    "session/<int:pk>/reveal/": "a redirect, unless TRANSCRIPTS is masked: see MASKED",
    "session/action/export/": "like the other actions",
    "session/<int:pk>/notes/": "a redirect; the form is on the page of the session",
    "session/<int:pk>/previous/": "a redirect",
    "session/<int:pk>/next/": "a redirect",
    "session/jobs/<int:pk>/cancel/": "a redirect",
    "message/": "a redirect",
    "message/<path:object_id>/change/": "a redirect",
    "auditentry/csv/": "a file",
    f"{FIGURES}/<slug:table>.csv": "a file",
    "maintenance/<slug:table>.csv": "a file",
    **{
        f"{model}/<path:object_id>/{page}/": "not found, since there are no rows"
        for model in (FIGURES, "maintenance")
        for page in ("change", "history")
    },
    **{
        f"{model}/{route}": reason
        for model in ("session", "message", "auditentry", FIGURES, "maintenance")
        for route, reason in {
            "add/": "refused",
            "<path:object_id>/delete/": "refused",
            "<path:object_id>/": "a redirect",
        }.items()
    },
}
"""The other addresses, with the reason."""


def routes() -> set[str]:
    """Return the model and route of each address of chatmemory's admin."""
    return {
        f"{path_of(model)}/{url.pattern._route}"  # type: ignore[union-attr]  # has one
        for model, model_admin in site._registry.items()
        if model in installed_models()
        for url in model_admin.get_urls()
    }


def path_of(model: type[Model]) -> str:
    """Return the path of a model in the admin, below `chatmemory/`."""
    return f"{model._meta.app_label}/{model._meta.model_name}".removeprefix("chatmemory/")


def all_pages() -> list[Page]:
    """Return the examples of all pages that need no other setting."""
    return [page for pages in PAGES.values() for page in pages]


def make_scene() -> Scene:
    """Store the data of all pages."""
    root = make_user("root", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(root)
    ann = make_user("ann", email="ann.miller@example.com", first_name="Ann", last_name="Miller")
    make_user("eva.north")
    make_user("eva.south")
    by = Actor.operator(root)
    _erase_person(by)
    talk = _talk(ann, by)
    purged, also = (_plain(f"order-{n}", ann, title=f"Return {n}") for n in (12, 13))
    done = _job("purge", by, [purged, also], reason="spam from a form")
    busy = _job("hold", by, [also, talk], owner="another process", reason="a lawsuit")
    running = _running(ann)
    held = _plain("held", None, title=LONG)
    services.hold_session(**_of(held, by), reason="a lawsuit, which may take several years to end")
    archived = _plain("archived", ann, title="An archived chat")
    services.archive_session(**_of(archived, by), reason="")
    _statistics()
    _threads(talk)
    return Scene(
        root=root,
        cookie=client.cookies[settings.SESSION_COOKIE_NAME].value,
        ann=ann,
        talk=talk,
        running=running,
        purged=purged,
        archived=archived,
        held=held,
        server=_plain("server-1", None),
        done=done,
        busy=busy,
        entry=AuditEntry.objects.filter(action="trim").get(),
        message=Message.objects.get(session=talk, seq=6),
        unstored=Turn.objects.get(session=talk, client_id="unstored"),
    )


def _of(session: Session, by: Actor) -> dict[str, Any]:
    return {"session_key": session.key, "scope": session.scope, "by": by}


def _plain(key: str, owner: User | None, **columns: Any) -> Session:
    session = make_session(key, owner=owner, **columns)
    texts = make_messages("Where is my order?", "It is on its way.", "Thanks", "You are welcome")
    services.append_messages(**_of(session, Actor.server("tests")), messages=texts)
    session.refresh_from_db()
    return session


def _turn(session: Session, client_id: str, content: str, message: Any, **ending: Any) -> Turn:
    admitted = services.admit_turn(
        **_of(session, Actor.server("tests")), client_id=client_id, content=content, owner="tests"
    )
    claim = admitted.claim
    assert claim is not None
    start_turn(claim=claim)
    finish_turn(
        claim=claim,
        message={"role": "assistant", "content": message},
        **{"status": "complete", "model": "example-large", **ending},
    )
    return Turn.objects.get(session=session, client_id=client_id)


def _talk(ann: User, by: Actor) -> Session:
    """Store a session with one of everything: calls, feedback, failures, gaps, notes."""
    session = make_session(
        "order-4711",
        owner=ann,
        title="Where is my order?",
        instructions="Be helpful.",
        metadata={"shop": "north", "word": LONG},
    )
    of = _of(session, by)
    call = {"name": "find_order", "args": {"number": 4711}, "id": "c1", "type": "tool_call"}
    services.append_messages(
        **of,
        messages=[
            *make_messages("Hello", "How can I help?", "My key is sk-1", "Do not share sk-1"),
            {"role": "user", "content": "Where is my order?"},
            {"role": "assistant", "content": REPLY, "tool_calls": [call]},
            {"role": "tool", "content": '{"state": "sent"}', "tool_call_id": "c1"},
            {"role": "assistant", "content": LONG},
        ],
    )
    turn = _turn(
        session,
        "good",
        "And the other order?",
        "It is **waiting**.",
        usage={"input_tokens": 1_200, "output_tokens": 34},
        first_text_ms=700,
    )
    as_ann = Actor.user(ann)
    services.set_feedback(
        session_key=session.key, turn=turn.client_id, value=-1, reason="Not true", by=as_ann
    )
    _turn(session, "bad", "Are you sure?", "So f", status="failed", error="model_error")
    Turn.objects.create(
        session=session, client_id="unstored", status="interrupted", partial="not stored", epoch=1
    )
    services.tag_session(**of, tag="vip", reason="")
    services.add_note(**of, text="Called the customer; they wait for a second parcel.")
    services.redact_message(**of, seq=3, reason="a key")
    services.trim_session(**of, before_seq=5, reason="too long")
    session.refresh_from_db()
    return session


def _running(ann: User) -> Session:
    session = _plain("running", ann, title="A running reply")
    of = _of(session, Actor.server("tests"))
    claim = services.admit_turn(**of, client_id="r", content="And now?", owner="tests").claim
    assert claim is not None
    start_turn(claim=claim)
    save_partial(claim=claim, text="The reply **so far**", step=1)
    services.admit_turn(**of, client_id="q", content="A waiting message", if_busy="queue")
    # The servers of the test must not end it.
    Turn.objects.filter(client_id="r").update(lease_until=timezone.now() + timedelta(hours=1))
    session.refresh_from_db()
    return session


def _job(
    action: str, by: Actor, sessions: list[Session], *, owner: str = "", reason: str = ""
) -> Job:
    """Store a job; with an owner, it stays under way."""
    found = Session.objects.filter(pk__in=[session.pk for session in sessions])
    job = create_job(action=action, sessions=found, order=Order(by=by, reason=reason), params={})
    claim = claim_job(owner=owner or "tests", job_pk=job.pk)
    assert claim is not None
    if owner:
        Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() + timedelta(hours=1))
    else:
        run_slice(claim)
    job.refresh_from_db()
    return job


def _threads(session: Session) -> None:
    Thread.objects.create(thread_id="return-7", key="1", session=session, low=session.first_seq)
    day = datetime.now(UTC).date()
    scope = session.scope
    Thread.objects.create(thread_id=LONG, key="2", scope=scope, low=1, last_active_day=day)


def _erase_person(by: Actor) -> None:
    gone = make_user("gone")
    session = _plain("gone-1", gone)
    services.erase_person(by=by, scope=session.scope, reason="a request by e-mail")


def _statistics() -> None:
    today = datetime.now(UTC).date()
    for ago in range(30):
        day = today - timedelta(days=ago)
        counts = {"sessions": 3 + ago % 5, "messages": 40 * (1 + ago % 7)}
        counts |= {"good": ago % 4, "bad": ago % 2}
        DailyActivity.objects.update_or_create(day=day, defaults=counts)  # an erasure counted too
        for model, status, error in (
            ("example-large", "complete", ""),
            ("example-small", "complete", ""),
            ("example-large", "failed", "model_error"),
        ):
            turns = 2 if error else 20 + ago % 9
            DailyTurns.objects.create(
                day=day,
                model=model,
                status=status,
                error=error,
                turns=turns,
                tokens_in=900 * turns,
                tokens_out=200 * turns,
                first_text={"861": turns},
                duration={"4871": turns},
            )
    roll_up_statistics()
    now = timezone.now()
    ran = {"started_at": now, "ended_at": now, "succeeded_at": now, "is_ok": True}
    for task in Maintenance.Task.values:
        Maintenance.objects.create(name=task, counts={"n": 1}, **ran)
