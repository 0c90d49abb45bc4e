from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "tests.shop"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from chatmemory.derived import register  # not above: it needs the models

        register(self.get_model("Order"), session="chat")
