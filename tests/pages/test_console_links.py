"""Staff who open the address of another person get a link to the admin; others learn nothing."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from chatmemory import services
from chatmemory.models import AuditEntry
from tests.factories import BY, make_session, make_user

pytestmark = pytest.mark.django_db

KEY = str(uuid.uuid4())
NEW = str(uuid.uuid4())


@pytest.fixture
def chat():
    return make_session(KEY, owner=make_user("ann"))


def browser_of(user):
    browser = Client()
    browser.force_login(user)
    return browser


def operator(**fields):
    user = make_user("olga", is_staff=True, **fields)
    user.user_permissions.add(
        Permission.objects.get(codename="view_session", content_type__app_label="chatmemory")
    )
    return user


def get(user, key):
    return browser_of(user).get(reverse("chatmemory:session", args=[key]))


def test_an_operator_gets_a_link_and_no_new_chat(chat):
    answer = get(operator(), KEY)
    html = answer.content.decode()
    assert "This chat belongs to someone else." in html
    assert f'href="{reverse("admin:chatmemory_session_change", args=[chat.pk])}"' in html
    assert "<chat-memory" not in html
    assert not AuditEntry.objects.exists()


def test_an_operator_gets_a_link_for_each_person_with_the_key(chat):
    other = make_session(KEY, owner=make_user("bob"))
    html = get(operator(), KEY).content.decode()
    for session in (chat, other):
        assert reverse("admin:chatmemory_session_change", args=[session.pk]) in html


def test_a_key_that_the_person_chose_leads_there_too():
    make_session("order-7", owner=make_user("ann"))
    assert get(operator(), "order-7").status_code == 200
    assert get(make_user("bob"), "order-7").status_code == 404


def test_a_purged_chat_and_a_new_key_are_a_new_chat_for_an_operator(chat):
    services.purge_session(session_key=KEY, by=BY, scope=f"user:{chat.owner_id}", reason="a test")
    user = operator()
    for key in (KEY, NEW):
        assert "<chat-memory" in get(user, key).content.decode()


def test_the_operator_s_own_chat_stays_a_chat():
    user = operator()
    make_session(KEY, owner=user)
    make_session(KEY, owner=make_user("ann"))
    assert "<chat-memory" in get(user, KEY).content.decode()


@pytest.mark.parametrize("is_staff", [True, False])
def test_others_cannot_distinguish_it_from_a_new_chat(chat, is_staff):
    user = make_user("bob", is_staff=is_staff)
    pages, statements = [], []
    for key in (KEY, NEW):
        with CaptureQueriesContext(
            connection,
        ) as captured:
            pages.append(get(user, key).content.decode().replace(key, "key"))
        statements.append([each["sql"].replace(key, "key") for each in captured])
    assert [len(each) for each in statements] == [len(statements[0])] * 2
    assert "<chat-memory" in pages[0]
    assert "belongs to someone" not in pages[0]
    assert "admin/chatmemory" not in pages[0]


def test_an_inactive_permission_of_a_person_who_is_no_staff_shows_nothing(chat):
    user = operator()
    type(user).objects.update(is_staff=False)
    assert "<chat-memory" in get(user, KEY).content.decode()
