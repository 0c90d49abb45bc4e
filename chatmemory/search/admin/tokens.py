"""Signed tokens by which a search continues: they end, and belong to one operator and filters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from django.core import signing

from chatmemory.services import Actor

TOKEN_SECONDS = 900
"""How long a search can be continued."""

_SALT = "chatmemory.search.admin"


class TokenExpired(Exception):
    """The token has ended."""


class TokenInvalid(Exception):
    """The token was changed, or belongs to another operator or other filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A search, and where it continues."""

    words: str
    mode: str
    role: str
    reason: str
    cursor: str


def write_token(found: Continuation, *, by: Actor, filters: str) -> str:
    """Return a token for this operator and these filters of the list."""
    content = {**asdict(found), "by": by.id, "filters": filters}
    return signing.dumps(content, salt=_SALT, compress=True)


def read_token(token: str, *, by: Actor, filters: str) -> Continuation:
    """Return the content of a token. Raises TokenExpired, TokenInvalid."""
    try:
        content: dict[str, Any] = signing.loads(token, salt=_SALT, max_age=TOKEN_SECONDS)
    except signing.SignatureExpired:
        raise TokenExpired from None
    except signing.BadSignature:
        raise TokenInvalid from None
    if (content.pop("by"), content.pop("filters")) != (by.id, filters):
        raise TokenInvalid
    return Continuation(**content)
