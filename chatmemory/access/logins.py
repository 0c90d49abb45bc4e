"""Logins: which persons may chat, and whether their authentication is still valid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from django.conf import settings as django_settings
from django.contrib.auth import (
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
    get_user_model,
    load_backend,
)
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import CharField, DateTimeField, Exists, Model, QuerySet, Value
from django.db.models.manager import BaseManager
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.utils.module_loading import import_string

from chatmemory.access import embeds
from chatmemory.access.actors import Actor, owner_of, user_scope, visitor_of
from chatmemory.access.visits import Visit
from chatmemory.conf import settings
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import durably
from chatmemory.database.statements import CompiledSelect, Parameter
from chatmemory.errors import Forbidden, Unauthenticated
from chatmemory.models import Visitor, on_primary

MODEL_BACKEND = "django.contrib.auth.backends.ModelBackend"
"""Django's backend, which finds a user by primary key alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The authentication of a person. It ends with its Django session, password or credential."""

    actor: Actor
    proof: str
    """The result of `proof_of` at the time of the login."""
    key: str | None = None
    """The key of the Django session; None without one."""
    credential: str | None = None
    """Another means of authentication, such as a token, for the function in `VALID_LOGINS`."""
    network: str = ""
    """The network of a visitor, for limits per network."""
    embed: str = ""
    """The key of the embed of a visitor; empty on the same site."""
    origin: str = ""
    """The origin of the page on which the visitor of an embed chats."""
    visit: Visit | None = field(default=None, compare=False)
    """The socket, for the functions of GATE and IMPERSONATOR."""
    person: Actor | None = None
    """The person in whose name an operator acts by IMPERSONATOR."""

    @property
    def by(self) -> Actor:
        """Whose chats it reaches."""
        return self.person or self.actor

    @classmethod
    def of(
        cls, user: AbstractBaseUser, key: str | None = None, credential: str | None = None
    ) -> Login:
        """Return a login with the user's current password hash."""
        return cls(actor=Actor.user(user), proof=proof_of(user), key=key, credential=credential)


def visitor_login(actor: Actor, embed: str, *, network: str, origin: str) -> Login:
    """Return the login of a visitor; the origin of the page counts only for an embed."""
    place = origin if embed else ""
    return Login(actor=actor, proof="", network=network, embed=embed, origin=place)


def proof_of(user: AbstractBaseUser) -> str:
    """Return a hash that changes with the user's password, as in Django's sessions.

    The hash is empty for a user model without passwords.
    """
    return user.get_session_auth_hash() if hasattr(user, "get_session_auth_hash") else ""


def login_of_session(key: str) -> Login:
    """Return the login of a Django session, by the rules of `django.contrib.auth.get_user`.

    Changes neither the session nor the user. Raises Unauthenticated, MemoryUnavailable.
    """
    user = durably(lambda: _user_of_session(key), is_repeatable=True)
    if user is None or not is_active(user):
        raise Unauthenticated
    return Login.of(user, key)


def _user_of_session(key: str) -> AbstractBaseUser | None:
    data = _session_data(key)
    path = data.get(BACKEND_SESSION_KEY)
    if SESSION_KEY not in data or path not in django_settings.AUTHENTICATION_BACKENDS:
        return None
    user = _user_of_backend(path, get_user_model()._meta.pk.to_python(data[SESSION_KEY]))
    if user is None:
        return None
    proof = data.get(HASH_SESSION_KEY) or ""
    proofs = [proof_of(user)]
    if hasattr(user, "get_session_auth_fallback_hash"):
        proofs += user.get_session_auth_fallback_hash()
    return user if any(constant_time_compare(proof, each) for each in proofs) else None


def _session_data(key: str) -> Mapping[str, Any]:
    """Return the content of an unexpired Django session; empty without one."""
    store = _session_store()(key)
    model = _session_model()
    if _loads_by_itself() or model is None or not _has_fixed_rows(model):
        loaded: Mapping[str, Any] = store.load()
        return loaded
    alias = router.db_for_write(model)
    for row in _SESSION.rows(model, using=alias, key=key, now=timezone.now()):
        data: Mapping[str, Any] = store.decode(row["session_data"])
        return data
    return {}


def session_data(keys: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return the content of unexpired Django sessions; of Django's own tables, by one query."""
    model = _session_model()
    if model is None or _loads_by_itself() or len(keys) <= 1:
        return {key: _session_data(key) for key in keys}
    found = on_primary(model).filter(session_key__in=keys, expire_date__gt=timezone.now())
    decode = _session_store()().decode
    return {key: decode(data) for key, data in found.values_list("session_key", "session_data")}


def _loads_by_itself() -> bool:
    """Whether the store replaces a method of Django's by which the rows are read."""
    store = _session_store()
    return any(getattr(store, name, None) is not getattr(DatabaseStore, name) for name in _LOADING)


def _session_rows(sessions: type[Model]) -> QuerySet[Any, Any]:
    return _valid_sessions(sessions).values("session_data")


def _valid_sessions(sessions: type[Model]) -> QuerySet[Any, Any]:
    # Not by Note [Database clock]: Django computes `expire_date` with the clock of a process.
    return sessions._default_manager.filter(
        session_key=Parameter("key", CharField()),
        expire_date__gt=Parameter("now", DateTimeField()),
    )


_LOADING = ("load", "_get_session_from_db")  # the methods that `_session_data` replaces
_SESSION = CompiledSelect(_session_rows)


def _user_of_backend(path: Any, pk: Any) -> AbstractBaseUser | None:
    backend: Any = load_backend(path)
    if path != MODEL_BACKEND:
        found: AbstractBaseUser | None = backend.get_user(pk)
        return found
    model = get_user_model()
    user: AbstractBaseUser | None = None
    if _has_fixed_rows(model):
        alias = router.db_for_write(model)
        for row in _USER.rows(model, using=alias, pk=pk):
            user = model.from_db(alias, list(row), list(row.values()))
    else:
        user = on_primary(model).filter(pk=pk).first()
    return user if user is not None and backend.user_can_authenticate(user) else None


def _user_rows(user: type[Model]) -> QuerySet[Any, Any]:
    columns = (field.attname for field in user._meta.concrete_fields)
    rows: QuerySet[Any, Any] = user._default_manager.filter(pk=Parameter("pk", user._meta.pk))
    return rows.values(*columns)


_USER = CompiledSelect(_user_rows)


def check_login(login: Login) -> None:
    """Check that a login is still valid and may chat. Raises Unauthenticated, Forbidden."""
    if not durably(lambda: is_valid(login), is_repeatable=True):
        raise Unauthenticated
    check_reach(login.by)


def is_valid(login: Login) -> bool:
    """Whether what authenticated the user is still valid; the user may still be forbidden."""
    return _is_current(login) and bool(allowed_logins({login}))


def _is_current(login: Login) -> bool:
    """Whether `current_logins` returns the login. Each frame asks, so it is one statement."""
    if login.actor.kind == "visitor":
        return login in current_logins({login})
    user, sessions = get_user_model(), None
    alias = router.db_for_write(user)
    is_one_statement = _has_fixed_rows(user)
    if login.key is not None:
        sessions = _session_model()
        is_one_statement &= (
            sessions is not None
            and _has_fixed_rows(sessions)
            and router.db_for_write(sessions) == alias
        )
    if not is_one_statement:
        return login in current_logins({login})
    now = timezone.now()
    try:
        rows = _LOGIN.rows(user, sessions, using=alias, pk=login.actor.id, key=login.key, now=now)
    except (ValidationError, ValueError):  # no primary key of a user
        return False
    for row in rows:
        has_session = row.pop(_HAS_SESSION)
        found = user.from_db(alias, list(row), list(row.values()))
        return has_session and is_active(found) and proof_of(found) == login.proof
    return False


def _login_rows(user: type[Model], sessions: type[Model] | None) -> QuerySet[Any, Any]:
    """Select a user, and whether the Django session exists, if one is needed."""
    has_session: Any = Value(True)
    if sessions is not None:
        has_session = Exists(_valid_sessions(sessions))
    columns = (field.attname for field in user._meta.concrete_fields)
    users = user._default_manager.filter(pk=Parameter("pk", user._meta.pk))
    rows: QuerySet[Any, Any] = users.annotate(**{_HAS_SESSION: has_session}).values(
        *columns, _HAS_SESSION
    )
    return rows


_HAS_SESSION = "chatmemory_has_session"  # a name that no field of a host's user model has
_LOGIN = CompiledSelect(_login_rows)


def _has_fixed_rows(model: type[Model]) -> bool:
    """Whether the manager selects the same rows each time, so that its query can be compiled.

    A host's manager may use the clock or the current tenant.
    """
    method: Any = type(model._default_manager).get_queryset
    return method is BaseManager.get_queryset


def current_logins(logins: Collection[Login]) -> set[Login]:
    """Return the logins whose account is active, with an unchanged password and Django session.

    Logins of visitors are current until the visitor ends or is adopted, or until EMBEDS loses
    the embed or its origin.
    """
    proofs = proofs_of({login.actor.owner for login in logins})
    keys = existing_session_keys({login.key for login in logins if login.key is not None})
    # Each place once: EMBEDS may be the host's mapping, which queries a database.
    places = {(login.embed, login.origin) for login in logins if login.embed}
    allowed_places = {("", ""), *(place for place in places if embeds.has_origin(*place))}
    return {
        login
        for login in logins
        if proofs.get(login.actor.owner) == login.proof
        and (login.key is None or login.key in keys)
        and (login.embed, login.origin) in allowed_places
    }


def allowed_logins(logins: set[Login]) -> set[Login]:
    """Return the logins that have a Django session or that `VALID_LOGINS` returns, and visitors."""
    # Only the logins of the host: Django knows which of its own sessions are valid.
    of_host = {login for login in logins if login.key is None and login.actor.kind == "user"}
    if not of_host or settings.VALID_LOGINS is None:
        return logins
    return logins - of_host.difference(import_string(settings.VALID_LOGINS)(list(of_host)))


def check_reach(by: Actor) -> None:
    """Check that `REACH` allows an actor to chat. Raises Forbidden."""
    if settings.REACH is not None and not import_string(settings.REACH)(by):
        raise Forbidden("You may not chat here.")


def check_self_service(action: str) -> None:
    """Check that people may do this with their own data by `SELF_SERVICE`. Raises Forbidden."""
    if action not in settings.SELF_SERVICE:
        raise Forbidden(f"Ask an operator to {action} your data.")


def may_chat(scope: str) -> bool:
    """Whether turns of this scope may run: a user must be active, and `REACH` must allow it."""
    kind, _, pk = scope.partition(":")
    try:
        if kind == "user":
            user = on_primary(get_user_model()).filter(pk=pk).first()
            if user is None or not is_active(user):
                return False
            check_reach(Actor.user(user))
        elif kind == "visitor":
            check_reach(Actor.known_visitor(pk))
    except (Forbidden, ValidationError, ValueError):  # the last two: no primary key of a user
        return False
    return True


def proofs_of(owners: Collection[str]) -> Mapping[str, str]:
    """Return the result of `proof_of` for each active user, by scope such as `user:7`.

    The result for a current visitor is empty.
    """
    # By scope: the digest of a visitor is no primary key, and the query of users would raise.
    pks = [pk for owner in owners if (pk := owner_of(owner)) is not None]
    users = on_primary(get_user_model()).filter(pk__in=pks) if pks else ()
    proofs = {user_scope(user): proof_of(user) for user in users if is_active(user)}
    return proofs | dict.fromkeys(_current_visitors(owners), "")


def _current_visitors(owners: Collection[str]) -> list[str]:
    digests = [digest for owner in owners if (digest := visitor_of(owner)) is not None]
    if not digests or not settings.ALLOW_ANONYMOUS:
        return []
    return [visitor.scope for visitor in Visitor.objects.current().filter(digest__in=digests)]


def is_active(user: AbstractBaseUser) -> bool:
    """Whether the account may be used. Not a condition of queries: some models have no field."""
    return bool(getattr(user, "is_active", True))


def existing_session_keys(keys: Collection[str]) -> set[str]:
    """Return the keys of unexpired Django sessions; with sessions in a table, by one query."""
    if not keys:
        return set()
    model = _session_model()
    if model is not None:
        sessions = on_primary(model).filter(session_key__in=keys, expire_date__gt=timezone.now())
        return set(sessions.values_list("session_key", flat=True))
    if django_settings.SESSION_ENGINE.endswith("signed_cookies"):
        return set(keys)  # the server stores nothing that it could check
    return {key for key in keys if _session_store()().exists(key)}


def _session_model() -> type[Model] | None:
    """Return the model of Django's sessions; None if they are not in a table."""
    store = _session_store()
    return store.get_model_class() if hasattr(store, "get_model_class") else None


def _session_store() -> Any:
    return import_module(django_settings.SESSION_ENGINE).SessionStore


alogin_of_session = in_pool(login_of_session)
acurrent_logins = in_pool(current_logins)
aallowed_logins = in_pool(allowed_logins)
