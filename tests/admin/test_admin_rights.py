"""Every admin page with every permission: its response, its audit entries, what it reveals."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from chatmemory import services
from chatmemory.models import AuditEntry, Message, Session, Turn, installed_models
from chatmemory.services.jobs.actions import ACTIONS, permission_of
from tests.admin.scene import FIGURES, SEARCH, path_of
from tests.factories import BY, make_messages, make_session, make_user
from tests.scoped_admin import OWNER, site

pytestmark = [pytest.mark.django_db, pytest.mark.regression]

SECRET = "classified"
"""A marker in all stored data of the foreign session."""
UNKNOWN = 999_999_999
NEVER = ("never",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The expected responses of an admin page."""

    needs: tuple[str, ...]
    """The permissions that it requires; `NEVER` if no permission opens it."""
    granted: int = 200
    posted: int = 200
    """The status of the response to an empty POST."""
    query: str = ""


def session_page(*needs, **more):
    return Page(needs=("view_session", *needs), **more)


def action_page(permission):
    return session_page(permission, query="?session={pk}")


def statistics_page(**more):
    return Page(needs=("view_statistics",), **more)


def health_page(**more):
    return Page(needs=("view_health",), **more)


NAMES = (*ACTIONS, "export")
JOB_ROUTES = {("session", f"jobs/<int:pk>/{page}") for page in ("", "cancel/", "undo/")}
"""The pages of a job, which its operator can view: tests/admin/test_job_pages.py."""
REDIRECT = Page(needs=(), granted=302, posted=302)
FORBIDDEN = Page(needs=NEVER)
PAGES = {
    ("session", ""): session_page(),
    ("session", "people/"): session_page(posted=405),
    ("session", "person/"): session_page(posted=405, query="?scope=server"),
    ("session", "person/export/"): session_page("export_history", query="?scope=server"),
    ("session", "person/erase/"): session_page("erase_person", query="?scope=server"),
    ("session", "<int:pk>/reveal/"): session_page(
        "view_unmasked", "view_transcript", granted=302, posted=302
    ),
    ("session", "<int:pk>/messages/<int:seq>/"): session_page("view_transcript", posted=405),
    ("session", "<int:pk>/messages/<int:seq>/redact/"): session_page(
        "redact_message", "view_transcript"
    ),
    ("session", "<int:pk>/turns/<int:turn>/redact/"): session_page(
        "redact_message", "view_transcript"
    ),
    ("session", "<int:pk>/search/"): session_page("view_transcript", posted=405),
    ("session", "<int:pk>/notes/"): session_page("note_session", granted=302),
    ("session", "<int:pk>/previous/"): session_page(granted=302, posted=405),
    ("session", "<int:pk>/next/"): session_page(granted=302, posted=405),
    **{("session", f"action/{name}/"): action_page(permission_of(name)) for name in NAMES},
    ("job", ""): session_page(),
    ("session", "<int:pk>/tags/"): session_page("tag_session"),
    ("session", "<path:object_id>/change/"): session_page(posted=403),
    ("session", "<path:object_id>/history/"): session_page(),
    ("message", ""): session_page("view_transcript", granted=302, posted=302),
    ("message", "<path:object_id>/change/"): session_page(
        "view_transcript", granted=302, posted=302
    ),
    ("message", "<path:object_id>/history/"): session_page("view_transcript"),
    ("auditentry", ""): Page(needs=("view_audit",)),
    ("auditentry", "csv/"): Page(needs=("view_audit",), posted=405),
    ("auditentry", "verify/"): Page(needs=("view_audit",)),
    ("auditentry", "<path:object_id>/change/"): Page(needs=("view_audit",), posted=403),
    ("auditentry", "<path:object_id>/history/"): Page(needs=("view_audit",)),
    (SEARCH, ""): session_page("view_transcript", "search_content"),
    (FIGURES, "<slug:table>.csv"): statistics_page(),
    ("maintenance", "<slug:table>.csv"): health_page(),
    **{
        (model, route): page
        for model, make in ((FIGURES, statistics_page), ("maintenance", health_page))
        for route, page in {
            "": make(),
            "<path:object_id>/change/": make(granted=404, posted=404),
            "<path:object_id>/history/": make(granted=404, posted=404),
        }.items()
    },
    **{
        (model, route): page
        for model in ("session", "message", "auditentry", FIGURES, "maintenance")
        for route, page in {
            "add/": FORBIDDEN,
            "<path:object_id>/delete/": FORBIDDEN,
            "<path:object_id>/": REDIRECT,
        }.items()
    },
}


def address_of(model, route, pk):
    """Return the URL of a page about the row with this primary key."""
    path = re.sub("<(path|int):(object_id|pk)>", str(pk), route).replace("<int:seq>", "1")
    path = path.replace("<int:turn>", str(turn_of(pk)))
    path = path.replace("<slug:table>", "models" if model == FIGURES else "storage")
    app = "" if model in (FIGURES, SEARCH) else "chatmemory/"
    return f"/admin/{app}{model}/{path}{PAGES[model, route].query.format(pk=pk)}"


def turn_of(session_pk):
    """Return the turn of a session with unstored text, or an unknown one."""
    return Turn.objects.filter(session=session_pk).values_list("pk", flat=True).first() or UNKNOWN


def every_permission():
    """Return the permissions of the models that the admin shows."""
    found = Permission.objects.filter(content_type__app_label__startswith="chatmemory")
    return set(found.values_list("codename", flat=True))


def rights_to_try():
    """Yield no permission, each one, each required one with `view_session`, and all."""
    everything = every_permission()
    needed = sorted({name for page in PAGES.values() for name in page.needs} & everything)
    pairs = [{"view_session", name} for name in needed]
    return [set(), *({name} for name in sorted(everything)), *pairs, everything]


def operator(rights):
    user = make_user(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(user)
    return client


def talk_of(name, word):
    owner = make_user(name)
    session = make_session(
        f"{word}-key",
        owner=owner,
        title=f"{word} title",
        instructions=f"{word} instructions",
        metadata={"word": word},
    )
    messages = make_messages(f"{word} question", f"{word} answer")
    where = {"session_key": session.key, "scope": session.scope, "by": BY}
    services.append_messages(messages=messages, **where)
    Turn.objects.create(
        session=session, client_id="t", status="interrupted", partial=f"{word} partial", epoch=1
    )
    return session


@pytest.fixture
def talks(settings):
    """Return a session that operators of the scoped admin can view, and one that they can't."""
    settings.ROOT_URLCONF = "tests.scoped_admin"
    return talk_of(OWNER, "plain"), talk_of("bob", SECRET)


def pks(model, talks):
    """Return primary keys of the visible session, the foreign session and no session."""
    if model == "session":
        return [*(talk.pk for talk in talks), UNKNOWN]
    if model == "message":
        return [*(Message.objects.get(session=talk, seq=1).pk for talk in talks), UNKNOWN]
    if model == "auditentry":
        return [services.archive_session(**where(talks[0]), reason="").pk, None, UNKNOWN]
    return [1, None, UNKNOWN]


def where(session):
    return {"session_key": session.key, "scope": session.scope, "by": BY}


def content_of(answer):
    """Return everything that a response reveals, without the primary keys of the request."""
    head = "".join(f"{name}: {value}\n" for name, value in answer.items() if name != "Expires")
    page = re.sub(r'value="[A-Za-z0-9]{64}"', "", answer.getvalue().decode())
    return answer.status_code, head + page


def test_the_table_has_every_address():
    found = {
        (path_of(model), route)
        for model, model_admin in site._registry.items()
        if model in installed_models()
        for url in model_admin.get_urls()
        for route in expanded(url.pattern._route)
    }
    assert found == set(PAGES) | JOB_ROUTES


def expanded(route):
    """Return the route with each action."""
    name = "<str:action>"
    return {route.replace(name, action) for action in ACTIONS} if name in route else {route}


@pytest.mark.long
@pytest.mark.parametrize(("model", "route"), PAGES)
@pytest.mark.parametrize("verb", ["get", "post"])
def test_each_page_checks_permissions_and_reveals_no_foreign_data(talks, verb, model, route):
    page = PAGES[model, route]
    names_row = "pk" in route or "object_id" in route or "{pk}" in page.query
    own, foreign, unknown = pks(model, talks)
    for rights in rights_to_try():
        client = operator(rights)

        def ask(pk):
            AuditEntry.objects.filter(action__in=["refused", "read"]).delete()
            answer = getattr(client, verb)(address_of(model, route, pk))  # noqa: B023  # called here
            refused = AuditEntry.objects.filter(action="refused").values_list("reason", flat=True)
            return answer, list(refused)

        is_granted = rights >= set(page.needs)
        expected = (page.granted if verb == "get" else page.posted) if is_granted else 403
        answer, refused = ask(own)
        assert answer.status_code == expected, rights
        assert SECRET not in content_of(answer)[1]
        assert_recorded(refused, answer, rights)
        if not names_row or route == "<path:object_id>/":
            continue
        if foreign is not None and (is_granted or not rights):
            other, refused = ask(foreign)
            assert SECRET not in content_of(other)[1]
            assert_recorded(refused, other, rights)
            assert other.status_code == (404 if is_granted and expected < 400 else expected)
        if is_granted:
            none, refused = ask(unknown)
            assert_recorded(refused, none, rights)
            assert none.status_code == (404 if expected < 400 else expected)
            assert foreign is None or content_of(other) == content_of(none)


def assert_recorded(refused, answer, rights):
    """A refusal leaves one entry, with a permission that is missing; nothing else leaves one."""
    assert len(refused) == (answer.status_code == 403)
    if refused and not rights >= every_permission():
        assert not set(refused) <= rights or refused[0].startswith(("add_", "change_", "delete_"))


@pytest.mark.parametrize("model", ["session", "message", "auditentry", FIGURES, "maintenance"])
@pytest.mark.parametrize("forged", [{"action": "delete_selected", "post": "yes"}, {"_save": "1"}])
def test_a_forged_action_on_any_list_is_refused(talks, model, forged):
    pk = pks(model, talks)[0]
    client = operator(every_permission())
    address = address_of(model, "", pk)
    answer = client.post(address, {"_selected_action": pk, **forged})
    assert answer.status_code == 403
    kind = "change" if "_save" in forged else "delete"
    assert AuditEntry.objects.get(action="refused").reason == f"{kind}_{model.rpartition('/')[2]}"


@pytest.mark.parametrize("name", ["trim", "clear", "purge"])
def test_no_removal_reaches_a_session_outside_the_queryset(talks, name):
    own, foreign = talks
    client = operator(every_permission())
    given = {"reason": "x", "count": 2, "limit": "keep_last", "value": 0}
    address = f"/admin/chatmemory/session/action/{name}/?session="
    assert client.post(f"{address}{foreign.pk}", given).status_code == 404
    both = client.post(f"{address}{own.pk}&session={foreign.pk}", given)
    assert both.status_code == 302
    foreign.refresh_from_db()
    assert (foreign.removed_at, foreign.message_count) == (None, 2)
    assert [e.session_pk for e in AuditEntry.objects.all()] == [own.pk]


def test_an_action_of_the_list_reaches_no_session_outside_the_queryset(talks):
    client = operator(every_permission())
    chosen = {"action": "purge", "_selected_action": [talk.pk for talk in talks]}
    page = client.post("/admin/chatmemory/session/", chosen, follow=True)
    assert [row.session.pk for row in page.context["summary"].rows] == [talks[0].pk]
    assert SECRET not in page.content.decode()


@pytest.mark.parametrize(
    ("permission", "route"),
    [
        ("view", "<path:object_id>/change/"),
        ("view", "<path:object_id>/history/"),
        ("view", "<int:pk>/messages/<int:seq>/"),
        ("view_transcript", "<int:pk>/messages/<int:seq>/"),
        ("view_transcript", "<int:pk>/search/"),
        ("redact_message", "<int:pk>/messages/<int:seq>/redact/"),
        ("view_transcript", "<int:pk>/messages/<int:seq>/redact/"),
        *((permission_of(name), f"action/{name}/") for name in NAMES),
    ],
)
def test_a_permission_for_one_session_hides_the_others_like_the_queryset(
    talks, monkeypatch, permission, route
):
    own, _ = talks
    scoped = type(site.get_model_admin(Session))
    monkeypatch.delattr(scoped, "get_queryset")
    client = operator(every_permission())
    addresses = [address_of("session", route, talk.pk) for talk in talks]
    assert [client.get(address).status_code for address in addresses] == [200, 200]
    name = f"has_{permission}_permission"
    decide = getattr(scoped, name)
    monkeypatch.setattr(
        scoped,
        name,
        lambda self, request, obj=None: decide(self, request, obj) and obj in (None, own),
    )
    assert [client.get(address).status_code for address in addresses] == [200, 404]
