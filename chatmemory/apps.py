"""The app, and what its start connects."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.apps import AppConfig, apps
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_out
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_started
from django.db.models import Model
from django.db.models.signals import class_prepared, post_delete, post_save
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
        from chatmemory.pages import checks as page_checks  # noqa: F401  # registers them
        from chatmemory.runner import runner
        from chatmemory.services.news import call_after_commit
        from chatmemory.services.rollback import is_test_running
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
            services.forget_user(instance, using=using)

        def close(request: Any, **_: object) -> None:
            login = getattr(getattr(request, "session", None), "session_key", None)
            if login:
                call_after_commit(partial(hub.expel_login, login))

        def expel(instance: Any, using: str, **about: object) -> None:
            if about["signal"] is post_delete or not getattr(instance, "is_active", True):
                call_after_commit(partial(hub.expel_user, str(instance.pk)), using=using)

        # After a crash of all servers no socket may come for a long time, but people look at pages.
        def sweep(sender: type, **_: object) -> None:
            if issubclass(sender, ASGIHandler) and not is_test_running():
                hub.begin_sweeps()

        request_started.connect(sweep, weak=False, dispatch_uid="chatmemory.sweep")
        signals.session_changed.connect(poke, weak=False, dispatch_uid="chatmemory.poke")
        signals.turn_waiting.connect(begin, weak=False, dispatch_uid="chatmemory.begin")
        signals.stop_requested.connect(stop, weak=False, dispatch_uid="chatmemory.stop")
        user_logged_out.connect(close, weak=False, dispatch_uid="chatmemory.close")
        user_model = get_user_model()

        # Only models of users: with a receiver of all models, Django would load each row of any
        # model that the project deletes, instead of deleting them in one statement.
        def watch(sender: type[Model], **_: object) -> None:
            if issubclass(sender, user_model):
                post_save.connect(expel, sender, weak=False, dispatch_uid="chatmemory.expel")
            if sender._meta.concrete_model is user_model:
                post_delete.connect(expel, sender, weak=False, dispatch_uid="chatmemory.expel")
                post_delete.connect(forget, sender, weak=False, dispatch_uid="chatmemory.forget")

        for model in apps.get_models():
            watch(model)
        class_prepared.connect(watch, weak=False, dispatch_uid="chatmemory.watch")
