"""Who may be here, and still may: an account that is active, a login that goes on."""

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
from chatmemory.services.actors import Actor
from chatmemory.services.faults import durably
from chatmemory.services.pool import in_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How a person was let in."""

    actor: Actor
    proof: str
    """What `proof_of` was then."""
    key: str | None = None
    """Of the Django session; None if there was none."""

    @classmethod
    def of(cls, user: AbstractBaseUser, key: str | None = None) -> Login:
        """That of a user who has just been let in."""
        return cls(actor=Actor.user(user), proof=proof_of(user), key=key)


def proof_of(user: AbstractBaseUser) -> str:
    """What changes with the user's password, as Django's own logins do; it tells nothing of it."""
    return user.get_session_auth_hash()


def check_login(login: Login) -> None:
    """See that a person who was let in still may be here. Raises Unauthenticated, Forbidden."""
    pk = login.actor.id
    proofs = durably(lambda: proofs_of({pk}), is_repeatable=True)
    if proofs.get(pk) != login.proof:
        raise Unauthenticated
    if login.key is not None:
        key = login.key
        if not durably(lambda: living_logins({key}), is_repeatable=True):
            raise Unauthenticated
    check_reach(login.actor)


def check_reach(by: Actor) -> None:
    """See that this person may chat, as `REACH` says. Raises Forbidden."""
    if settings.REACH is not None and not import_string(settings.REACH)(by):
        raise Forbidden("You may not chat here.")


def may_chat(scope: str) -> bool:
    """Whether turns of this scope may run: a person needs an active account, and REACH."""
    kind, _, pk = scope.partition(":")
    try:
        if kind == "user":
            user = get_user_model()._default_manager.filter(pk=pk).first()
            if user is None or not getattr(user, "is_active", True):
                return False
            check_reach(Actor.user(user))
        elif kind == "visitor":
            check_reach(Actor(kind, pk, f"visitor {pk[:8]}"))
    except (Forbidden, ValidationError, ValueError):  # or no account can have this key
        return False
    return True


def proofs_of(user_pks: Collection[str]) -> Mapping[str, str]:
    """The proofs of those of these users who are active, by primary key."""
    users = get_user_model()._default_manager.filter(pk__in=user_pks, is_active=True)
    return {str(user.pk): proof_of(user) for user in users}


def living_logins(keys: Collection[str]) -> set[str]:
    """Those of these Django sessions that still exist; one query where they are in a table."""
    store = import_module(django_settings.SESSION_ENGINE).SessionStore
    if hasattr(store, "get_model_class"):
        sessions = store.get_model_class().objects.filter(
            session_key__in=keys, expire_date__gt=timezone.now()
        )
        return set(sessions.values_list("session_key", flat=True))
    if django_settings.SESSION_ENGINE.endswith("signed_cookies"):
        return set(keys)  # nothing is kept on the server that could be gone
    return {key for key in keys if store().exists(key)}


acheck_login = in_pool(check_login)
acheck_reach = in_pool(check_reach)
