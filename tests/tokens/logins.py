"""Which tokens are still valid: the function of `VALID_LOGINS`."""

from __future__ import annotations

from collections.abc import Sequence

from rest_framework.authtoken.models import Token

from chatmemory.services import Login


def valid_logins(logins: Sequence[Login]) -> list[Login]:
    """Return the logins whose token still exists."""
    keys = Token.objects.filter(key__in=[login.credential for login in logins])
    existing = set(keys.values_list("key", flat=True))
    return [login for login in logins if login.credential in existing]
