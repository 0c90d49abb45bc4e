"""The functions of docs/howto that decide about persons, messages and sessions."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from django.contrib.auth.models import Group
from django.db import connection, models
from django.test.utils import isolate_apps

from chatmemory import services
from chatmemory.errors import Forbidden, Refused
from chatmemory.services import Actor
from tests.factories import make_messages, make_user, make_visitor
from tests.test_examples import run_example

pytestmark = pytest.mark.django_db


@pytest.fixture
def use(monkeypatch, settings):
    """Let settings name functions of an example."""

    def name_functions(names, **paths):
        module = ModuleType("module_of_the_shop")
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        added = {key: f"{module.__name__}.{path}" for key, path in paths.items()}
        settings.CHATMEMORY = {**settings.CHATMEMORY, **added}

    return name_functions


def send(user, client_id):
    return services.admit_turn(
        session_key="talk", by=Actor.user(user), client_id=client_id, content="Hi", create=True
    )


def test_the_gate_asks_for_the_second_factor():
    check = run_example("docs/howto/gate.md", "otp_device_id")["check"]
    user = make_user()
    with pytest.raises(Refused, match="second factor"):
        check(SimpleNamespace(user=user, session={}))
    assert check(SimpleNamespace(user=user, session={"otp_device_id": 1})) is None
    assert check(SimpleNamespace(user=None, session={})) is None


def test_the_functions_find_who_impersonates():
    ann, olga = make_user("ann"), make_user("olga")
    shown = run_example("docs/howto/gate.md", "_impersonate")["impersonator"]
    visit = SimpleNamespace(session={"_auth_user_id": olga.pk, "_impersonate": ann.pk})
    assert shown(visit) == (olga, ann)
    assert shown(SimpleNamespace(session={"_auth_user_id": olga.pk})) is None
    hijacked = run_example("docs/howto/gate.md", "hijack_history")["impersonator"]
    assert hijacked(SimpleNamespace(session={"hijack_history": [olga.pk]})) == olga
    assert hijacked(SimpleNamespace(session={})) is None


def test_the_quota_counts_messages_and_lets_two_at_the_same_time_pass(use):
    names = run_example("docs/howto/quotas.md", "def check(by, sending)")
    user = make_user()
    services.append_messages(
        session_key="old", by=Actor.user(user), messages=make_messages(*["Hi"] * 999), create=True
    )
    asked = (Actor.user(user), SimpleNamespace(text="Hi"))
    services.append_messages(
        session_key="old", by=Actor.user(user), messages=[{"role": "assistant", "content": "Hi"}]
    )
    assert services.get_session(session_key="old", by=Actor.user(user)).last_seq == 1000
    with pytest.raises(Refused, match="500 messages"):
        names["check"](*asked)
    use(names, BEFORE_SEND="check")
    with pytest.raises(Refused, match="Upgrade"):
        send(user, "c1")
    other = make_user()
    for _ in range(2):  # before one of them is stored
        names["check"](Actor.user(other), SimpleNamespace(text="Hi"))
    assert send(other, "c1").status == "waiting"


@pytest.fixture
def credit(monkeypatch):
    """The table of the page, whose unit the example takes."""
    with isolate_apps("tests.howto"):

        class Credit(models.Model):
            owner = models.CharField(max_length=200, unique=True)
            left = models.IntegerField()

            class Meta:
                app_label = "howto"

            def __str__(self):
                return self.owner

    if connection.vendor != "postgresql":
        pytest.skip("creates a table in a transaction")
    with connection.schema_editor(atomic=False) as editor:
        editor.create_model(Credit)
    shop, shop_models = ModuleType("shop"), ModuleType("shop.models")
    shop_models.__dict__["Credit"] = Credit
    monkeypatch.setitem(sys.modules, "shop", shop)
    monkeypatch.setitem(sys.modules, "shop.models", shop_models)
    return Credit


def test_the_counter_is_exact_and_a_repeat_takes_nothing(use, credit):
    use(run_example("docs/howto/quotas.md", "def take(by, sending)"), BEFORE_SEND="take")
    user = make_user()
    credit.objects.create(owner=services.user_scope(user), left=1)
    for _ in range(2):
        assert send(user, "c1").status == "waiting"
    with pytest.raises(Refused, match="no messages left"):
        send(user, "c2")
    assert credit.objects.get().left == 0


def test_tenants_have_their_prompt_and_their_lists(use, settings):
    names = run_example("docs/howto/tenants.md", "def begin(by, asked)")
    use(names, NEW_SESSION="begin", INSTRUCTIONS_FOR="instructions_for")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "METADATA_FILTERS": ["tenant"]}
    ann, bob = make_user("ann"), make_user("bob")
    ann.groups.add(Group.objects.create(name="acme"))
    session = services.open_session(session_key="a", by=Actor.user(ann))
    assert names["instructions_for"](session) == "You are the assistant of acme."
    for tenant, keys in {"acme": ["a"], "other": []}.items():
        page = services.list_sessions(by=Actor.user(ann), metadata={"tenant": tenant})
        assert [one.key for one in page.sessions] == keys
    with pytest.raises(Forbidden, match="no company"):
        services.open_session(session_key="b", by=Actor.user(bob))
    with pytest.raises(Forbidden, match="Sign in"):
        services.open_session(session_key="c", by=make_visitor().actor)
