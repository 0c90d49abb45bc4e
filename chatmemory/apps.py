"""The app, and what its start connects."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ChatMemoryConfig(AppConfig):
    """Connects the signals of the services to hub and runner."""

    name = "chatmemory"
    verbose_name = _("Chat memory")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from chatmemory import checks as checks
        from chatmemory import signals
        from chatmemory.hub import hub
        from chatmemory.runner import runner

        hub.listener = runner

        def poke(session_pk: int, **_: object) -> None:
            hub.poke(session_pk)

        def begin(session_pk: int, **_: object) -> None:
            runner.consider(session_pk)
            hub.call_runners(session_pk)

        def stop(turn_pk: int, **_: object) -> None:
            runner.stop(turn_pk)
            hub.call_stop(turn_pk)

        signals.session_changed.connect(poke, weak=False, dispatch_uid="chatmemory.poke")
        signals.turn_waiting.connect(begin, weak=False, dispatch_uid="chatmemory.begin")
        signals.stop_requested.connect(stop, weak=False, dispatch_uid="chatmemory.stop")
