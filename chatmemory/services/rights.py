"""Logins: who may chat, and whether what authenticated them is still valid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module

from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.module_loading import import_string

from chatmemory.conf import settings
from chatmemory.errors import Forbidden, Unauthenticated
from chatmemory.models import on_primary
from chatmemory.services.actors import Actor
from chatmemory.services.faults import durably
from chatmemory.services.pool import in_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How a person was authenticated. It ends with what authenticated them."""

    actor: Actor
    proof: str
    """The result of `proof_of` at that time."""
    key: str | None = None
    """The key of the Django session; None without one."""
    credential: str | None = None
    """What authenticated the person instead, such as a token, for the function `VALID_LOGINS`."""

    @classmethod
    def of(
        cls, user: AbstractBaseUser, key: str | None = None, credential: str | None = None
    ) -> Login:
        """Return the login of a user who was authenticated just now."""
        return cls(actor=Actor.user(user), proof=proof_of(user), key=key, credential=credential)


def proof_of(user: AbstractBaseUser) -> str:
    """Return a hash that changes with the user's password, like Django's own logins."""
    return user.get_session_auth_hash()


def check_login(login: Login) -> None:
    """Check that a login is still valid and may chat. Raises Unauthenticated, Forbidden."""
    if not durably(lambda: valid_logins({login}), is_repeatable=True):
        raise Unauthenticated
    check_reach(login.actor)


def valid_logins(logins: Collection[Login]) -> set[Login]:
    """Return those that are still valid, in a few queries however many there are."""
    return allowed_logins(standing_logins(logins))


def standing_logins(logins: Collection[Login]) -> set[Login]:
    """Return those whose account is active, with the same password and the same Django session."""
    proofs = proofs_of({login.actor.id for login in logins})
    keys = living_logins({login.key for login in logins if login.key is not None})
    return {
        login
        for login in logins
        if proofs.get(login.actor.id) == login.proof and (login.key is None or login.key in keys)
    }


def allowed_logins(standing: set[Login]) -> set[Login]:
    """Return all by a Django session, and of the others those to which `VALID_LOGINS` agrees."""
    of_host = {login for login in standing if login.key is None}
    if not of_host or settings.VALID_LOGINS is None:
        return standing
    return standing - of_host.difference(import_string(settings.VALID_LOGINS)(list(of_host)))


def check_reach(by: Actor) -> None:
    """See that this person may chat, as `REACH` says. Raises Forbidden."""
    if settings.REACH is not None and not import_string(settings.REACH)(by):
        raise Forbidden("You may not chat here.")


def may_chat(scope: str) -> bool:
    """Whether turns of this scope may run: a person needs an active account, and REACH."""
    kind, _, pk = scope.partition(":")
    try:
        if kind == "user":
            user = on_primary(get_user_model()).filter(pk=pk).first()
            if user is None or not getattr(user, "is_active", True):
                return False
            check_reach(Actor.user(user))
        elif kind == "visitor":
            check_reach(Actor(kind, pk, f"visitor {pk[:8]}"))
    except (Forbidden, ValidationError, ValueError):  # or no account can have this key
        return False
    return True


def proofs_of(user_pks: Collection[str]) -> Mapping[str, str]:
    """Return the proofs of the active users among these, by primary key."""
    # Not a condition of the query: a user model may have is_active as an attribute alone.
    users = on_primary(get_user_model()).filter(pk__in=user_pks)
    return {str(user.pk): proof_of(user) for user in users if getattr(user, "is_active", True)}


def living_logins(keys: Collection[str]) -> set[str]:
    """Return those of these Django sessions that still exist; in a table, with one query."""
    if not keys:
        return set()
    store = import_module(django_settings.SESSION_ENGINE).SessionStore
    if hasattr(store, "get_model_class"):
        sessions = on_primary(store.get_model_class()).filter(
            session_key__in=keys, expire_date__gt=timezone.now()
        )
        return set(sessions.values_list("session_key", flat=True))
    if django_settings.SESSION_ENGINE.endswith("signed_cookies"):
        return set(keys)  # the server stores nothing that could end
    return {key for key in keys if store().exists(key)}


acheck_login = in_pool(check_login)
astanding_logins = in_pool(standing_logins)
aallowed_logins = in_pool(allowed_logins)
acheck_reach = in_pool(check_reach)
