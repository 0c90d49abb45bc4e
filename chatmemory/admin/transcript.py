"""What was said in a session, a page at a time. Who reads it leaves a trace in the audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from chatmemory import codec, services
from chatmemory.admin.pages import SessionPage
from chatmemory.admin.readonly import operator
from chatmemory.admin.text import cut, visible
from chatmemory.models import Head, Message, Page, Session, StoredMessage, Turn

ROWS = 50
LONGEST_TEXT = 2_000
"""How many characters of a message the transcript shows; its own page has all of it."""

LONGEST_CALL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A message as the transcript shows it."""

    seq: int
    role: str
    role_name: str
    text: str
    is_cut: bool
    calls: list[str]
    notes: list[str]
    model: str
    tokens: int
    created_at: datetime
    is_superseded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstoredText:
    """A text that no message holds, as the transcript shows it."""

    role: str
    role_name: str
    status: str
    text: str
    is_cut: bool
    created_at: datetime


class Reading(SessionPage):
    """A page that shows messages of one session."""

    permission = "view_transcript"

    def named(self) -> QuerySet[Session]:
        return self.model_admin.get_queryset(self.request).filter(pk=self.kwargs["pk"])

    def page(self, *, limit: int = ROWS, **where: int | None) -> Page:
        """Return rows of the session, and record that the operator read them. Raises Http404."""
        [session] = self.permitted()
        page = Session.objects.filter(pk=session.pk).page(limit=limit, **where)
        if page is None:
            raise Http404
        seqs = [row.seq for row in page.rows]
        span = {"from_seq": seqs[0], "to_seq": seqs[-1]} if seqs else {}
        services.record_reading(session=session, by=operator(self.request), **span)
        return page

    def answer(self, template: str, head: Head, **context: object) -> HttpResponse:
        """The page, in the admin's frame."""
        frame = self.model_admin.admin_site.each_context(self.request)
        name = visible(head.title or head.key)
        shown = {**frame, "opts": Session._meta, "head": head, "name": name, **context}
        return TemplateResponse(self.request, f"admin/chatmemory/session/{template}", shown)


class TranscriptView(Reading):
    """A page of messages: the newest, or those after or before the number in the query."""

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        after, before = _number(request, "after"), _number(request, "before")
        page = self.page(after=after, before=before)
        ranges = services.read_superseded(head=page.head)
        first, last = (page.rows[0].seq, page.rows[-1].seq) if page.rows else (0, 0)
        is_newest = last == page.head.last_seq or not page.rows
        return self.answer(
            "transcript.html",
            page.head,
            title=_("Transcript"),
            rows=[_shown(row, superseded=ranges) for row in page.rows],
            last=last,
            older=first if first > page.head.first_seq else None,
            newer=last if 0 < last < page.head.last_seq else None,
            unstored=_unstored(page.head) if is_newest else [],
        )


class MessageView(Reading):
    """One message, whole, with all that was stored of it."""

    def get(self, request: HttpRequest, pk: int, seq: int) -> HttpResponse:
        page = self.page(after=min(seq, codec.MAX_SAFE_INTEGER) - 1, limit=1)
        if [row.seq for row in page.rows] != [seq]:
            raise Http404
        row = page.rows[0]
        stored = row.body and json.dumps(row.plain(), ensure_ascii=False, indent=2)
        return self.answer(
            "message.html",
            page.head,
            title=_("Message %(seq)s") % {"seq": seq},
            row=_shown(row, len(row.text)),
            stored=stored and visible(stored),
        )


def _unstored(head: Head) -> list[UnstoredText]:
    """Return the text of ended turns that no message holds, without what a removal hides."""
    found: list[UnstoredText] = []
    session = Session.objects.filter(pk=head.pk).first()
    if session is None:  # vacuumed since the head was read
        return found
    for unstored in services.read_unstored(session=session):
        turn = unstored.turn
        if unstored.is_hidden:
            continue
        if turn.asked:
            found.append(_unstored_text(turn, Message.Role.USER, turn.asked_text))
        if turn.partial:
            found.append(_unstored_text(turn, Message.Role.ASSISTANT, turn.partial))
    return found


def _unstored_text(turn: Turn, role: Message.Role, text: str) -> UnstoredText:
    shown, is_cut = cut(text, LONGEST_TEXT)
    return UnstoredText(
        role=role,
        role_name=str(role.label),
        status=str(Turn.Status(turn.status).label),
        text=shown,
        is_cut=is_cut,
        created_at=turn.created_at,
    )


def _number(request: HttpRequest, name: str) -> int | None:
    """A number in the query; none if it is no number of a message."""
    given = request.GET.get(name, "")
    is_number = given.isascii() and given.isdecimal() and len(given) < 19
    return int(given) if is_number else None


def _shown(
    row: StoredMessage,
    limit: int = LONGEST_TEXT,
    superseded: Sequence[tuple[int, int]] = (),
) -> Shown:
    plain = row.plain()
    text, is_cut = cut(row.text, limit)
    return Shown(
        seq=row.seq,
        role=row.role,
        role_name=str(dict(Message.Role.choices).get(row.role, row.role)),
        text=text,
        is_cut=is_cut,
        calls=_calls(plain),
        notes=_notes(row, plain),
        model=visible(row.model),
        tokens=row.tokens,
        created_at=row.created_at,
        is_superseded=any(low <= row.seq <= high for low, high in superseded),
    )


def _calls(plain: dict[str, object]) -> list[str]:
    """The tools that a message calls, each with its arguments."""
    return [
        cut(f"{call.get('name')}({codec.dump_json(call.get('args'))})", LONGEST_CALL)[0]
        for call in codec.calls_of(plain)
    ]


def _notes(row: StoredMessage, plain: dict[str, object]) -> list[str]:
    """What an operator must know besides the text."""
    notes = []
    if row.status != Message.Status.COMPLETE:
        notes.append(str(dict(Message.Status.choices).get(row.status, row.status)))
    if row.error:
        notes.append(visible(row.error))
    if row.redacted:
        notes.append(_("redacted"))
    if row.quarantined or plain.get("quarantined"):
        notes.append(_("can't be read; shown is its text"))
    if plain.get("cut") or plain.get("cut_calls"):
        notes.append(_("cut when it was stored"))
    return notes
