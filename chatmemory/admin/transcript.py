"""The transcript of a session, page by page. Reading it is audited."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from chatmemory import codec, services
from chatmemory.admin.pages import SessionPage
from chatmemory.admin.readonly import operator
from chatmemory.admin.text import truncate, visible
from chatmemory.models import Feedback, Head, Message, Page, Session, StoredMessage, Turn
from chatmemory.services.audit import readings

PAGE_ROWS = 50
MAX_TEXT_CHARS = 2_000
"""The transcript truncates longer messages; the page of a message shows all of it."""

MAX_CALL_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptRow:
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
    feedback: str
    """The value and the reason of the feedback on its turn; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstoredText:
    """The text of a turn that is not stored as a message, as the transcript shows it."""

    role: str
    role_name: str
    status: str
    text: str
    is_cut: bool
    created_at: datetime


class TranscriptPage(SessionPage):
    """A page that shows messages of one session."""

    permission = "view_transcript"

    def requested_sessions(self) -> QuerySet[Session]:
        return self.model_admin.get_queryset(self.request).filter(pk=self.kwargs["pk"])

    def read_page(self, *, limit: int = PAGE_ROWS, **position: int | None) -> Page:
        """Return rows of the session, and record that the operator read them. Raises Http404."""
        [session] = self.permitted_sessions()
        page = Session.objects.filter(pk=session.pk).page(limit=limit, **position)
        if page is None:
            raise Http404
        seqs = [row.seq for row in page.rows]
        span = {"from_seq": seqs[0], "to_seq": seqs[-1]} if seqs else {}
        readings.record_reading(session=session, by=operator(self.request), **span)
        return page

    def render(self, template: str, head: Head, **context: object) -> HttpResponse:
        """Return the page with the context that all admin pages need."""
        admin_context = self.model_admin.admin_site.each_context(self.request)
        name = visible(head.title or head.key)
        full = {**admin_context, "opts": Session._meta, "head": head, "name": name, **context}
        return TemplateResponse(self.request, f"admin/chatmemory/session/{template}", full)


class TranscriptView(TranscriptPage):
    """Shows the newest messages, or those after or before the seq in the query."""

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        after, before = _number(request, "after"), _number(request, "before")
        page = self.read_page(after=after, before=before)
        ranges = services.read_superseded(head=page.head)
        reasons = _reasons(page)
        first, last = (page.rows[0].seq, page.rows[-1].seq) if page.rows else (0, 0)
        is_newest = last == page.head.last_seq or not page.rows
        return self.render(
            "transcript.html",
            page.head,
            title=_("Transcript"),
            rows=[_transcript_row(row, superseded=ranges, reasons=reasons) for row in page.rows],
            last=last,
            older=first if first > page.head.first_seq else None,
            newer=last if 0 < last < page.head.last_seq else None,
            unstored=_unstored(page.head) if is_newest else [],
        )


class MessageView(TranscriptPage):
    """Shows one message without truncation, with its stored data."""

    def get(self, request: HttpRequest, pk: int, seq: int) -> HttpResponse:
        page = self.read_page(after=min(seq, codec.MAX_SAFE_INTEGER) - 1, limit=1)
        if [row.seq for row in page.rows] != [seq]:
            raise Http404
        row = page.rows[0]
        stored = row.body and json.dumps(row.plain(), ensure_ascii=False, indent=2)
        return self.render(
            "message.html",
            page.head,
            title=_("Message %(seq)s") % {"seq": seq},
            row=_transcript_row(row, max_chars=len(row.text), reasons=_reasons(page)),
            stored=stored and visible(stored),
        )


def _unstored(head: Head) -> list[UnstoredText]:
    """Return the texts of ended turns that are not stored as messages, except hidden ones."""
    found: list[UnstoredText] = []
    session = Session.objects.filter(pk=head.pk).first()
    if session is None:  # a vacuum deleted it after the head was read
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
    shown, is_cut = truncate(text, MAX_TEXT_CHARS)
    return UnstoredText(
        role=role,
        role_name=str(role.label),
        status=str(Turn.Status(turn.status).label),
        text=shown,
        is_cut=is_cut,
        created_at=turn.created_at,
    )


def _number(request: HttpRequest, name: str) -> int | None:
    """Return a seq from the query; None if it is missing or invalid."""
    value = request.GET.get(name, "")
    is_number = value.isascii() and value.isdecimal() and len(value) < 19
    return int(value) if is_number else None


def _transcript_row(
    row: StoredMessage,
    *,
    max_chars: int = MAX_TEXT_CHARS,
    superseded: Sequence[tuple[int, int]] = (),
    reasons: Mapping[int | None, str],
) -> TranscriptRow:
    plain = row.plain()
    text, is_cut = truncate(row.text, max_chars)
    return TranscriptRow(
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
        feedback=_feedback(row, reasons),
    )


def _reasons(page: Page) -> dict[int | None, str]:
    """Return the reasons of the feedback that these rows show, by the seq of the user row."""
    rated = [row.turn for row in page.rows if row.feedback is not None and row.turn is not None]
    if not rated:
        return {}
    given = Feedback.objects.filter(session=page.head.pk, user_seq__in=rated)
    return dict(given.values_list("user_seq", "reason"))


def _feedback(row: StoredMessage, reasons: Mapping[int | None, str]) -> str:
    if row.feedback is None:
        return ""
    value = _("Feedback: %(value)s") % {
        "value": dict(Feedback.Value.choices).get(row.feedback, row.feedback)
    }
    reason = visible(reasons.get(row.turn, ""))
    return f"{value}. {reason}" if reason else value


def _calls(plain: dict[str, object]) -> list[str]:
    """Return each tool call of a message with its arguments, truncated."""
    return [
        truncate(f"{call.get('name')}({codec.dump_json(call.get('args'))})", MAX_CALL_CHARS)[0]
        for call in codec.calls_of(plain)
    ]


def _notes(row: StoredMessage, plain: dict[str, object]) -> list[str]:
    """Return the notes beside the text: status, error, redaction, damage, truncation."""
    notes = []
    if row.status != Message.Status.COMPLETE:
        notes.append(str(dict(Message.Status.choices).get(row.status, row.status)))
    if row.error:
        notes.append(visible(row.error))
    if row.redacted:
        notes.append(_("redacted"))
    if row.quarantined or plain.get("quarantined"):
        notes.append(_("unreadable; only its text is shown"))
    if plain.get("cut") or plain.get("cut_calls"):
        notes.append(_("truncated when stored"))
    return notes
