"""The page of a session, which is its conversation, and the page of one message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from chatmemory.admin.privacy import Content, conceal, content_of, name_of
from chatmemory.admin.readonly import LIST_FILTERS
from chatmemory.admin.sections import may_view
from chatmemory.admin.sessions.conversation.base import ConversationPage
from chatmemory.admin.sessions.conversation.facts import Facts
from chatmemory.admin.sessions.conversation.heading import chips, summary
from chatmemory.admin.sessions.conversation.history import History
from chatmemory.admin.sessions.conversation.menu import Menu
from chatmemory.admin.sessions.conversation.notes import notes_of
from chatmemory.admin.sessions.conversation.positions import Span, first_since, moment, number
from chatmemory.admin.sessions.conversation.rows import Transcript, UnstoredText
from chatmemory.admin.sessions.conversation.turns import Turns, age_of
from chatmemory.admin.text import visible
from chatmemory.models import MAX_NOTE_CHARS, AuditEntry, JobAction, Message, Session, Turn


class ConversationView(ConversationPage):
    """Shows messages of a session, and the facts about it.

    Without the permission to read transcripts, it shows no messages.
    """

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        session = self.session
        content = content_of(self.model_admin, request, session)
        if content is Content.HIDDEN:
            history = History(self.model_admin, request, session)
            return self._render_page(session, history, Turns(session, [], has_rowless=True))
        span = _readable(request, session)
        if "jump" in request.GET:
            return self._jump(session, span)
        page = span.page(request)
        rows = page.rows(session)
        redacted = [row.seq for row in rows if row.redacted]
        history = History(self.model_admin, request, session, redacted=redacted)
        if history.is_erased:
            rows = [row for row in rows if row.seq >= session.first_seq]
        is_newest = page.high == span.high
        has_rowless = is_newest and (session.waiting > 0 or history.has_unstored_text)
        turns = Turns(session, rows, has_rowless=has_rowless)
        if content is Content.MASKED:
            conceal(rows, turns.all)
        transcript = Transcript(
            session=session,
            turns=turns,
            redactions=history.redactions,
            # Masked texts are not in the cache of rendered ones.
            is_source="source" in request.GET or content is Content.MASKED,
        )
        self.record_reading(session, [row.seq for row in rows])
        return self._render_page(
            session,
            history,
            turns,
            **self._transcript(transcript, rows, span, page),
            **self._live(transcript, history, is_newest=is_newest),
        )

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        self.model_admin.refuse(request, "change")

    def may(self, permission: str, session: Session) -> bool:
        return self.model_admin.permits(self.request, permission, obj=session)

    def _render_page(
        self, session: Session, history: History, turns: Turns, **context: object
    ) -> HttpResponse:
        facts = Facts(self.model_admin, self.request, session, history)
        first_text = facts.related.first_text
        self.name = name_of(self.model_admin, self.request, session, first_text)
        may_note = self.may("note_session", session)
        content = content_of(self.model_admin, self.request, session)
        menu = Menu(self.model_admin, self.request, session)
        return self.render(
            "conversation.html",
            session,
            title=self.name,
            chips=chips(session, turns),
            tags=[visible(tag) for tag in facts.related.tags],
            summary=summary(self.model_admin, session, turns),
            facts=facts.groups(turns),
            menu=menu,
            restore_url=menu.url_of(JobAction.RESTORE),
            trim_url=menu.url_of(JobAction.TRIM),
            gaps=history.gaps(),
            content=content,
            reveal_url=self._reveal_url(session) if content is Content.MASKED else "",
            may_read=self.may("view_transcript", session),
            log_url=self.model_admin.url_of("session_history", session.pk),
            audit_url=self._audit_url(session),
            notes=notes_of(self.request, session) if may_note and facts.related.has_notes else [],
            may_note=may_note,
            notes_url=self.url("session_notes", session.pk) if may_note else "",
            max_note_chars=MAX_NOTE_CHARS,
            previous_url=self.url("session_previous", session.pk),
            next_url=self.url("session_next", session.pk),
            **context,
        )

    def _reveal_url(self, session: Session) -> str:
        """Return the URL of the page that shows the texts; empty if the operator may not."""
        may_reveal = self.may("view_unmasked", session)
        return self.model_admin.url_of("session_reveal", session.pk) if may_reveal else ""

    def _audit_url(self, session: Session) -> str:
        """Return the URL of the session's audit entries; empty if the operator may not see them."""
        if not may_view(self.model_admin.admin_site, self.request, AuditEntry):
            return ""
        query = urlencode({"session_pk": session.pk, "action_is": "all"})  # readings too
        return f"{self.model_admin.url_of('auditentry_changelist')}?{query}"

    def _transcript(
        self, transcript: Transcript, rows: Sequence[Message], span: Span, page: Span
    ) -> dict[str, object]:
        """Return the context of the messages and the links between the pages."""
        session = transcript.session
        content = content_of(self.model_admin, self.request, session)
        target = number(self.request, "seq")
        is_removed_shown = "removed" in self.request.GET
        here = page.low - 1 if rows else None
        return {
            "segments": transcript.segments(rows, target=target),
            "target": target,
            "first": rows[0].seq if rows else None,
            "last": rows[-1].seq if rows else None,
            "end": session.last_seq,
            "is_oldest": page.low <= span.low,
            "oldest_url": self.page_url(session.pk, after=span.low - 1),
            "older_url": self.page_url(session.pk, before=page.low),
            "newer_url": self.page_url(session.pk, after=page.high),
            "newest_url": self.page_url(session.pk),
            "is_newest": page.high >= span.high,
            "is_source": transcript.is_source,
            "source_url": self.page_url(
                session.pk, after=here, source=None if transcript.is_source else 1
            ),
            "is_removed_shown": is_removed_shown,
            "hide_removed_url": self.page_url(session.pk, removed=None),
            "show_removed_url": self.page_url(session.pk, removed=1, seq=session.first_seq - 1),
            "has_removed": session.stored_from < session.first_seq,
            "may_redact": content is Content.SHOWN and self._may_redact(session),
            "search_url": self.url("session_search", session.pk),
            "kept": [
                (name, self.request.GET[name])
                for name in (LIST_FILTERS, "removed")
                if name in self.request.GET
            ],
            "prompt": visible(content.apply(session.instructions)),
            "metadata": visible(content.apply(_metadata(session))),
        }

    def _may_redact(self, session: Session) -> bool:
        return session.held_at is None and self.may("redact_message", session)

    def _live(
        self, transcript: Transcript, history: History, *, is_newest: bool
    ) -> dict[str, object]:
        """Return the running turn, the waiting messages, and those that were never stored."""
        turns = transcript.turns
        if not is_newest:
            return {}
        running = turns.running
        unstored = [self._cancelled(transcript, turn, history) for turn in turns.cancelled]
        return {
            "running": running
            and transcript.unstored(
                running, Message.Role.ASSISTANT, running.partial, age=age_of(running)
            ),
            "queued": [
                transcript.unstored(turn, Message.Role.USER, turn.asked_text, age=age_of(turn))
                for turn in turns.queued
            ],
            "unstored": [text for text in unstored if text is not None],
        }

    def _cancelled(
        self, transcript: Transcript, turn: Turn, history: History
    ) -> UnstoredText | None:
        is_removed = history.hides(turn.ended_at)
        if history.is_erased or (is_removed and "removed" not in self.request.GET):
            return None
        return transcript.unstored(turn, Message.Role.USER, turn.asked_text, is_removed=is_removed)

    def _jump(self, session: Session, span: Span) -> HttpResponse:
        """Redirect to a message by its number, or to the first one since a date."""
        wanted = self.request.GET["jump"].strip()
        seq = number(self.request, "jump")
        since = None if seq is not None else moment(wanted)
        if since is not None:
            seq = first_since(session, span, since)
        if seq is None:
            text = (
                _("No message since this date.")
                if since
                else _("Type a number or a date, such as 120 or 2026-05-04.")
            )
            messages.warning(self.request, text)
            return redirect(self.page_url(session.pk))
        if not span.low <= seq <= span.high:
            messages.warning(self.request, _("No message has this number."))
        return redirect(self.page_url(session.pk, fragment=f"m{seq}", seq=seq))


class MessageView(ConversationPage):
    """Shows one message without truncation, with its stored data."""

    permission = "view_transcript"

    def get(self, request: HttpRequest, pk: int, seq: int) -> HttpResponse:
        session = self.session
        message = self.message(session, seq)
        redacted = [seq] if message.redacted else []
        history = History(self.model_admin, request, session, redacted=redacted)
        if history.is_erased:
            raise Http404
        transcript = Transcript(
            session=session,
            turns=Turns(session, [message], has_rowless=False),
            redactions=history.redactions,
            is_source="source" in request.GET,
            max_chars=max(1, len(message.text)),
            max_raw_chars=len(message.body or ""),
        )
        self.record_reading(session, [seq])
        return self.render(
            "message.html",
            session,
            title=_("Message %(seq)s") % {"seq": seq},
            row=transcript.row(message, is_last=True),
            stored=transcript.row(message).raw,
            back_url=self.page_url(
                session.pk,
                fragment=f"m{seq}",
                seq=seq,
                removed=1 if seq < session.first_seq else None,
            ),
            is_source=transcript.is_source,
            source_url=self.url(
                "session_message", session.pk, seq, source=None if transcript.is_source else 1
            ),
        )

    def message(self, session: Session, seq: int) -> Message:
        """Return a stored message of the session. Raises Http404."""
        span = Span(low=max(seq, session.stored_from), high=min(seq, session.last_seq))
        rows = span.rows(session)
        if not rows:
            raise Http404
        return rows[0]


def _readable(request: HttpRequest, session: Session) -> Span:
    """Return the visible messages, or with `?removed=1` all that are stored."""
    low = session.stored_from if "removed" in request.GET else session.first_seq
    return Span(low=low, high=session.last_seq)


def _metadata(session: Session) -> str:
    if not session.metadata:
        return ""
    return json.dumps(session.metadata, ensure_ascii=False, indent=2)
