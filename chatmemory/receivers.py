"""Receivers that pass the signals of services and user accounts to hub, runner and services.

Only `apps.ready()` imports this module, so importing a service imports neither hub nor runner.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_started
from django.db.models import Model
from django.db.models.signals import class_prepared, post_delete, post_save
from django.dispatch import Signal

from chatmemory import services, signals
from chatmemory.access import visitors
from chatmemory.access.actors import Actor, user_scope
from chatmemory.conf import settings
from chatmemory.database.after_commit import (
    call_after_commit,
    changes,
    job_waiting,
    turn_ready,
    visitor_ended,
)
from chatmemory.database.host_tests import is_test_running
from chatmemory.errors import Conflict, MemoryUnavailable, NotFound, Unauthenticated
from chatmemory.live.hub import hub
from chatmemory.live.runner import runner
from chatmemory.live.waits import waits
from chatmemory.logs import log_error
from chatmemory.models import Change
from chatmemory.services.health.state import here
from chatmemory.services.retention import accounts

logger = logging.getLogger(__name__)


def connect() -> None:
    """Connect all receivers; a repeated call changes nothing."""
    hub.listener = runner
    here.process = hub
    _connect(changes, notify_session)
    _connect(turn_ready, start_turn)
    _connect(signals.stop_requested, stop_turn)
    _connect(job_waiting, start_job)
    _connect(request_started, start_sweeps)
    _connect(user_logged_out, close_login)
    _connect(user_logged_in, adopt_recent)
    _connect(visitor_ended, close_visitor)
    _connect(class_prepared, watch_user_model)
    for model in apps.get_models():
        watch_user_model(model)


def _connect(signal: Signal, receiver: Any, sender: type[Model] | None = None) -> None:
    uid = f"{__name__}.{receiver.__name__}"
    signal.connect(receiver, sender, weak=False, dispatch_uid=uid)


def watch_user_model(sender: type[Model], **_: object) -> None:
    """Connect the receivers of user accounts if this is a user model."""
    # Not for all models: with a receiver Django loads each row that the project deletes, instead of
    # deleting them in one statement.
    user_model = get_user_model()
    if issubclass(sender, user_model):
        _connect(post_save, close_user, sender)
    if sender._meta.concrete_model is user_model:
        _connect(post_delete, close_user, sender)
        _connect(post_delete, forget_user, sender)


def notify_session(
    session_pk: int, change: Change | None, is_local: bool = False, **_: object
) -> None:
    """Let the sockets and the waiting REST requests read the session again, or show the change."""
    hub.notify(session_pk, change, is_local=is_local)
    waits.wake(session_pk)


def start_turn(session_pk: int, **_: object) -> None:
    """Let a runner of this or another process claim the session's next turn, and show it."""
    notify_session(session_pk, None, is_local=True)
    runner.run_waiting(session_pk)
    hub.notify_runners(session_pk, is_first=not runner.owner)


def stop_turn(turn_pk: int, **_: object) -> None:
    """Stop the turn, in this or another process."""
    runner.stop(turn_pk)
    hub.notify_stop(turn_pk)


def start_job(job_pk: int, **_: object) -> None:
    """Let this or another process execute the job."""
    # A process without sweeps, such as one of a WSGI server, has no time between its requests.
    if hub.sweep.is_enabled:
        runner.run_jobs()
    hub.notify_job(job_pk)


def start_sweeps(sender: type, **_: object) -> None:
    """Sweep from the first ASGI request on."""
    # Not from the first socket on: after a crash of all servers it may take long until a client
    # opens one, but people open pages.
    if issubclass(sender, ASGIHandler) and not is_test_running():
        hub.start_sweeps()


def close_login(request: Any, **_: object) -> None:
    """Close the sockets of a Django session that was logged out."""
    login = getattr(getattr(request, "session", None), "session_key", None)
    if login:
        call_after_commit(partial(hub.close_login_sockets, login))


def close_user(instance: Any, using: str, **about: object) -> None:
    """Close the sockets of a user who is disabled or deleted."""
    if about["signal"] is post_delete or not getattr(instance, "is_active", True):
        call_after_commit(partial(hub.close_owner_sockets, user_scope(instance)), using=using)


def adopt_recent(request: Any, user: Any, **_: object) -> None:
    """Move the recent sessions of the browser's visitor to the user, if VISITOR_ADOPT is auto."""
    if not settings.ALLOW_ANONYMOUS or settings.VISITOR_ADOPT != "auto" or request is None:
        return
    token = visitors.token_of(request)
    if token is None or not isinstance(user, get_user_model()):
        return
    try:
        visitor = services.authenticate_visitor(token=token).actor
        services.adopt_visitor(by=Actor.user(user), visitor=visitor, only_recent=True)
    except (Unauthenticated, NotFound, Conflict):
        return  # a cookie of another time
    except MemoryUnavailable as error:  # the person can confirm it later
        log_error(logger, "the sessions of a visitor were not adopted", error=error)


def close_visitor(scope: str, **_: object) -> None:
    """Close the sockets of a visitor who ended or was adopted."""
    hub.close_owner_sockets(scope)


def forget_user(instance: Any, using: str, **_: object) -> None:
    """Apply USER_DELETED to the sessions of a deleted user."""
    accounts.forget_user(instance, using=using)
