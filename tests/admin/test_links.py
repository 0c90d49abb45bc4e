"""Links from the host's own admin pages to conversations, on the page docs/howto/admin-links.md."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, Permission
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext, override_script_prefix
from django.urls import path, resolve
from django.utils.timezone import now

from chatmemory import services
from chatmemory.access.actors import importing_scope
from chatmemory.admin import SessionAdmin
from chatmemory.admin.links import conversation_links
from chatmemory.models import AuditEntry, Session, Turn
from tests.admin.visits import operator, talk_of
from tests.factories import BY, make_session, make_user
from tests.test_examples import run_example

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]
TAG = "{% load chatmemory %}{% chatmemory_conversations user %}"


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def root():
    return make_user("root", is_staff=True, is_superuser=True)


def request_of(user, page="/"):
    request = RequestFactory().get(page)
    request.user, request.session = user, {}
    request.resolver_match = resolve(page)
    return request


def staff(*rights, **columns):
    user = make_user(**{"is_staff": True, **columns})
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    return user


def titles(user, reader, **options):
    return [link.title for link in conversation_links(user, request=request_of(reader), **options)]


def mount(settings, *sites, prefix="admin"):
    """Make these sites the only pages of the project, the first at `prefix`."""
    names = [prefix, *(site.name for site in sites[1:])]
    pages = [path(f"{name}/", site.urls) for name, site in zip(names, sites, strict=True)]
    settings.ROOT_URLCONF = (path("", lambda request: None), *pages)


def site_of(model_admin=SessionAdmin, name="admin"):
    site = admin.AdminSite(name)
    site.register(Session, model_admin)
    return site


@pytest.fixture
def orders(shop, settings, tmp_path):
    """Add the page of an order to an admin; return the model."""
    page = (
        (ROOT / "docs/howto/admin-links.md")
        .read_text()
        .partition("```html\n")[2]
        .partition("```")[0]
    )
    file = tmp_path / page.split()[1]
    file.parent.mkdir(parents=True)
    file.write_text(page)
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path / "templates"]}]

    class OrderAdmin(run_example("docs/howto/admin-links.md", "class Media")["OrderAdmin"]):
        fields = ("item",)

        def has_view_permission(self, request, obj=None):
            return True

        has_add_permission = has_view_permission

    site = site_of()
    site.register(shop.Order, OrderAdmin)
    mount(settings, site)
    return shop.Order


def page_of(order, client):
    answer = client.get(f"/admin/shop/order/{order.pk}/change/")
    assert answer.status_code == 200
    return answer.text


def test_the_page_of_an_order_links_to_the_conversations_of_the_customer(orders, ann, root):
    talk = talk_of(ann, title="Where is my kettle?")
    talk_of(make_user("bob"), key="other", title="Of another customer")
    order = orders.objects.create(chat=talk, item="kettle")
    client = Client()
    client.force_login(root)
    page = page_of(order, client)
    assert "<h2>Chats</h2>" in page
    assert "chatmemory/admin/admin.css" in page
    [address] = re.findall(r'<a href="([^"]*)">Where is my kettle\?</a>', page)
    assert page.count("<li>\n<a href") == 1
    assert re.search(r'<span class="chatmemory-state idle">idle</span>\s*<time datetime="2', page)
    assert "Of another customer" not in page
    assert not AuditEntry.objects.exists()
    assert client.get(address).context["session"] == talk


def test_the_page_shows_nothing_to_an_operator_without_the_right_nor_without_a_user(orders, ann):
    theirs = orders.objects.create(chat=talk_of(ann, title="Secret"), item="kettle")
    guests = orders.objects.create(chat=make_session("guest"), item="kettle")
    client = operator("view_session")
    assert "Chats" in page_of(theirs, client)
    assert "Chats" not in page_of(guests, client)
    assert client.get("/admin/shop/order/add/").status_code == 200
    page = page_of(theirs, operator("view_transcript", name="otto"))
    assert "Secret" not in page
    assert "Chats" not in page
    assert not AuditEntry.objects.exists()


def test_the_tag_writes_nothing_without_links(ann, root):
    context = Context({"request": request_of(root), "user": ann})
    assert Template(TAG).render(context) == ""
    make_session(owner=ann, title="<b>Kettle</b>")
    text = Template(TAG).render(context)
    assert "&lt;b&gt;Kettle&lt;/b&gt;" in text
    assert "<b>" not in text
    assert "<time" not in text


def test_the_tag_passes_its_options(ann, root):
    make_session("a", owner=ann)
    make_session("b", owner=ann)
    context = Context({"request": request_of(root), "user": ann})
    assert Template(TAG).render(context).count("<li>") == 2
    assert Template(TAG.replace("user", "user limit=1")).render(context).count("<li>") == 1


def test_the_tag_needs_the_request(ann):
    with pytest.raises(ImproperlyConfigured, match=r"context_processors\.request"):
        Template(TAG).render(Context({"user": ann}))


def test_the_example_in_python_names_title_and_state(ann, root):
    make_session(owner=ann, title="Kettle", held_at=now())
    order = SimpleNamespace(customer=ann)
    names = run_example(
        "docs/howto/admin-links.md", "conversation_links", order=order, request=request_of(root)
    )
    assert names["lines"] == ["Kettle: on hold"]


@pytest.mark.parametrize(
    ("columns", "right", "sees"),
    [
        ({"is_superuser": True}, "", True),
        ({}, "view_session", True),
        ({}, "view_transcript", False),
        ({"is_staff": False}, "view_session", False),
        ({"is_staff": False, "is_superuser": True}, "", False),
        ({"is_active": False, "is_superuser": True}, "", False),
    ],
)
def test_only_operators_who_may_view_sessions_get_links(ann, columns, right, sees):
    make_session(owner=ann, title="Kettle")
    assert titles(ann, staff(right, **columns)) == ["Kettle"] * sees
    assert titles(ann, AnonymousUser()) == titles(ann, ann) == []


def test_a_user_is_required(ann, root):
    make_session(owner=ann)
    for user in (None, "", AnonymousUser(), SimpleNamespace(pk=ann.pk)):
        assert titles(user, root) == []


def test_the_queryset_of_the_host_restricts_the_links(settings, ann, root):
    make_session("own", owner=ann, title="Kettle")
    make_session("foreign", owner=ann, title="Teapot")

    class ScopedAdmin(SessionAdmin):
        def get_queryset(self, request):
            return super().get_queryset(request).filter(title="Kettle")

    # The default site has the same name and shows all, but no address leads to it.
    assert titles(ann, root) == ["Teapot", "Kettle"]
    mount(settings, site_of(ScopedAdmin))
    assert titles(ann, root) == ["Kettle"]
    assert titles(ann, root, site=admin.site) == []


def test_the_queryset_is_not_read_for_others(settings, ann):
    class BranchAdmin(SessionAdmin):
        def get_queryset(self, request):
            return super().get_queryset(request).filter(owner__username=request.user.branch)

    mount(settings, site_of(BranchAdmin))
    assert titles(ann, AnonymousUser()) == titles(ann, staff()) == []


def test_a_decision_by_row_restricts_the_links(settings, ann, root, monkeypatch):
    for number in range(6):
        make_session(f"s{number}", owner=ann, title=f"{number}")

    class ChoosyAdmin(SessionAdmin):
        def has_view_permission(self, request, obj=None):
            return obj is None or (obj.owner.username == "ann" and int(obj.title) % 2 == 0)

    mount(settings, site_of(ChoosyAdmin))
    with CaptureQueriesContext(connection) as queries:
        assert titles(ann, root, limit=2) == ["4", "2"]
    assert len(queries) <= 3
    monkeypatch.setattr("chatmemory.admin.links.MAX_DECIDED", 4)
    assert titles(ann, root) == ["4", "2"]


def test_titles_are_as_in_the_list(settings, ann):
    talk_of(ann, "where is it?", key="untitled")
    talk_of(ann, key="titled", title="Kettle 7")
    reader, lead = (
        staff("view_session", *more) for more in ((), ("view_transcript", "view_unmasked"))
    )
    assert titles(ann, reader) == ["Kettle 7", "untitled"]
    assert titles(ann, lead) == ["Kettle 7", "where is it?"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": "masked"}
    assert titles(ann, lead) == ["•••••• •", "••••• •• ••?"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": "off"}
    assert titles(ann, lead) == ["titled", "untitled"]


def test_only_active_conversations_of_the_user_are_linked(ann, root):
    make_session("kept", owner=ann, title="kept")
    make_session("expired", owner=ann, expires_at=now() - timedelta(days=1))
    make_session("purged", owner=ann)
    services.purge_session(
        session_key="purged", scope=services.user_scope(ann), by=BY, reason="spam"
    )
    make_session("imported", owner=ann, scope=importing_scope(services.user_scope(ann)))
    make_session("of bob", owner=make_user("bob"))
    make_session("of the server")
    assert titles(ann, root) == ["kept"]


def test_the_last_active_come_first_each_with_its_state(ann, root):
    for days, key in enumerate(["held", "archived", "failed", "idle"]):
        make_session(key, owner=ann, last_message_at=now() - timedelta(days=days))
    make_session("empty", owner=ann)
    Session.objects.filter(key="held").update(held_at=now())
    Session.objects.filter(key="archived").update(archived_at=now())
    failed = Session.objects.get(key="failed")
    turn = {"client_id": "c1", "user_seq": 1, "epoch": failed.epoch}
    Turn.objects.create(session=failed, status="failed", **turn)
    links = conversation_links(ann, request=request_of(root))
    assert [link.title for link in links] == ["held", "archived", "failed", "idle", "empty"]
    assert [str(link.state) for link in links] == ["held", "archived", "failed", "idle", "idle"]
    assert links[2].last_message_at == failed.last_message_at
    assert titles(ann, root, limit=2) == ["held", "archived"]


def test_any_number_of_conversations_takes_three_statements(ann, root):
    for count in (1, 25):
        for number in range(count):
            make_session(f"{count}-{number}", owner=ann)
        with CaptureQueriesContext(connection) as queries:
            assert len(titles(ann, root)) == min(count, 20)
        assert len(queries) == 3
    assert "instructions" not in str(queries.captured_queries)


def test_the_links_lead_to_the_site_of_the_request_or_to_a_given_one(settings, ann, root):
    talk = make_session(owner=ann)
    own, ops, bare = site_of(), site_of(name="ops"), admin.AdminSite("bare")
    mount(settings, own, ops, bare)

    def urls(page, site=None, **attributes):
        request = request_of(root, page)
        request.__dict__.update(attributes)
        return [link.url for link in conversation_links(ann, request=request, site=site)]

    change = f"chatmemory/session/{talk.pk}/change/"
    assert urls("/") == urls("/admin/") == urls("/ops/", own) == [f"/admin/{change}"]
    assert urls("/ops/") == urls("/", ops) == urls("/", current_app="ops") == [f"/ops/{change}"]
    assert urls("/", resolver_match=None) == [f"/admin/{change}"]
    assert urls("/bare/") == urls("/", bare) == []
    assert urls("/", site_of(name="elsewhere")) == []
    settings.ROOT_URLCONF = (path("", lambda request: None),)
    assert urls("/") == []


def test_another_model_admin_of_sessions_gets_no_links(settings, ann, root):
    make_session(owner=ann)
    mount(settings, site_of(admin.ModelAdmin))
    assert titles(ann, root) == []


def test_the_links_work_below_a_prefix(settings, ann, root):
    talk = make_session(owner=ann)
    mount(settings, site_of(), prefix="büro")
    with override_script_prefix("/app/"):
        [link] = conversation_links(ann, request=request_of(root))
    assert link.url == f"/app/b%C3%BCro/chatmemory/session/{talk.pk}/change/"


WITHOUT_ADMIN = f"""
import sys
from project import settings
for app in ("django.contrib.admin", "chatmemory.statistics", "project"):
    settings.INSTALLED_APPS.remove(app)
import django
django.setup()
from django.template import Context, Template
print(repr(Template({TAG!r}).render(Context({{"request": object(), "user": None}}))))
print([name for name in sys.modules if name.startswith("chatmemory.admin")])
"""


@pytest.mark.slow
def test_a_project_without_the_admin_can_load_the_tags():
    command = [sys.executable, "-c", WITHOUT_ADMIN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603  # our own
    assert done.stdout == "''\n[]\n"


def test_the_example_registers_with_a_site_of_the_host():
    site = run_example("docs/howto/admin-links.md", 'AdminSite("shop_admin")')["site"]
    assert isinstance(site.get_model_admin(Session), SessionAdmin)
