"""The app, and what its start connects."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_out
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.utils.translation import gettext_lazy as _


class ChatMemoryConfig(AppConfig):
    """Connects the signals of the services to hub and runner, and those of accounts to them."""

    name = "chatmemory"
    verbose_name = _("Chat memory")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from chatmemory import checks as checks
        from chatmemory import services, signals
        from chatmemory.hub import hub
        from chatmemory.runner import runner
        from chatmemory.waits import waits

        hub.listener = runner

        def poke(session_pk: int, **_: object) -> None:
            hub.poke(session_pk)
            waits.wake(session_pk)

        def begin(session_pk: int, **_: object) -> None:
            runner.consider(session_pk)
            hub.call_runners(session_pk)

        def stop(turn_pk: int, **_: object) -> None:
            runner.stop(turn_pk)
            hub.call_stop(turn_pk)

        def forget(instance: Any, using: str, **_: object) -> None:
            scope = services.user_scope(instance)
            transaction.on_commit(
                lambda: services.forget_person(scope=scope), using=using, robust=True
            )

        def close(request: Any, **_: object) -> None:
            login = getattr(getattr(request, "session", None), "session_key", None)
            if login:
                transaction.on_commit(lambda: hub.expel_login(login), robust=True)

        def expel(instance: Any, using: str, **about: object) -> None:
            # Told apart here, not by the sender: a proxy of the model has signals of its own.
            if isinstance(instance, get_user_model()) and (
                about["signal"] is post_delete or not getattr(instance, "is_active", True)
            ):
                pk = str(instance.pk)
                transaction.on_commit(lambda: hub.expel_user(pk), using=using, robust=True)

        signals.session_changed.connect(poke, weak=False, dispatch_uid="chatmemory.poke")
        signals.turn_waiting.connect(begin, weak=False, dispatch_uid="chatmemory.begin")
        signals.stop_requested.connect(stop, weak=False, dispatch_uid="chatmemory.stop")
        user_logged_out.connect(close, weak=False, dispatch_uid="chatmemory.close")
        post_save.connect(expel, weak=False, dispatch_uid="chatmemory.expel")
        post_delete.connect(expel, weak=False, dispatch_uid="chatmemory.expel")
        post_delete.connect(
            forget,
            sender=settings.AUTH_USER_MODEL,
            weak=False,
            dispatch_uid="chatmemory.forget",
        )
