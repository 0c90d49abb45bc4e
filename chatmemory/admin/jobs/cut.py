"""The two messages between which a trim cuts, as far as the operator may read them."""

from __future__ import annotations

from django.db.models.functions import Left
from django.http import HttpRequest

from chatmemory.admin.privacy import Content, content_of
from chatmemory.admin.readonly import ReadOnlyAdmin, operator
from chatmemory.admin.text import visible
from chatmemory.models import Message, Session
from chatmemory.models.starts import MAX_START_CHARS
from chatmemory.rendering.text import first_words
from chatmemory.services.audit.readings import record_reading


def messages_at_cut(
    model_admin: ReadOnlyAdmin, request: HttpRequest, session: Session, last: int | None
) -> list[tuple[int, str, str]]:
    """Return the messages on both sides of a cut after a seq, and record that they are read.

    Of each the seq, the role and the first words.
    """
    if last is None or (content := content_of(model_admin, request, session)) is Content.HIDDEN:
        return []
    near = Message.stored.filter(session=session, seq__in=(last, last + 1)).order_by("seq")
    rows = list(near.values_list("seq", "role", Left("text", MAX_START_CHARS)))
    by = operator(request)
    record_reading(session=session, by=by, from_seq=last, to_seq=min(last + 1, session.last_seq))
    roles = dict(Message.Role.choices)
    return [(n, str(roles.get(r, r)), visible(content.apply(first_words(t)))) for n, r, t in rows]
