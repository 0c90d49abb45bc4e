"""For `VALID_LOGINS`: which logins by REST framework's `TokenAuthentication` are still valid."""

from __future__ import annotations

from collections.abc import Collection

from django.utils.module_loading import import_string
from rest_framework.authentication import TokenAuthentication

from chatmemory.conf import settings
from chatmemory.models import on_primary
from chatmemory.services import Login


def valid_logins(logins: Collection[Login]) -> list[Login]:
    """Return the logins whose token still exists, and those without a credential.

    Each `TokenAuthentication` in `API_AUTHENTICATION` has its tokens. A login by another
    credential, such as a JSON Web Token, is not returned.
    """
    given = {login.credential for login in logins if login.credential is not None}
    classes = (import_string(path) for path in settings.API_AUTHENTICATION)
    models = [each().get_model() for each in classes if issubclass(each, TokenAuthentication)]
    existing: set[str | None] = {None}
    for model in models:
        tokens = on_primary(model).filter(key__in=given)
        existing.update(tokens.values_list("key", flat=True))
    return [login for login in logins if login.credential in existing]
