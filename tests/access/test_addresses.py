"""The address that a call names leads only to sessions that its actor reaches."""

from __future__ import annotations

import pytest
from django.db import transaction

from chatmemory.access.addresses import Address
from chatmemory.errors import BadInput, NotFound
from chatmemory.services import SERVER, Actor
from tests.factories import BY, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def lock(address: Address) -> int:
    with transaction.atomic():
        return address.lock().pk


def test_a_person_names_no_scope_of_another():
    anne, ben = make_user(), make_user()
    session = make_session(owner=ben)
    assert lock(Address("talk", Actor.user(ben), None)) == session.pk
    assert lock(Address("talk", Actor.user(ben), session.scope)) == session.pk
    with pytest.raises(TypeError, match="reach only their own sessions"):
        lock(Address("talk", Actor.user(anne), session.scope))
    with pytest.raises(NotFound):
        lock(Address("talk", Actor.user(anne), None))


def test_a_primary_key_finds_no_other_session_under_the_key():
    session = make_session()
    assert lock(Address("talk", BY, SERVER, session.pk)) == session.pk
    with pytest.raises(NotFound):
        lock(Address("talk", BY, SERVER, session.pk + 1))


@pytest.mark.parametrize("key", ["", "k" * 201, "\x00"])
def test_an_invalid_key_is_not_looked_up(key, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(BadInput):
        Address(key, BY, SERVER).sessions()
