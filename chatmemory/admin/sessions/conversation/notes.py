"""The notes of operators on the page of a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatmemory import services
from chatmemory.admin.jobs.words import error_text
from chatmemory.admin.privacy import note_text
from chatmemory.admin.readonly import operator
from chatmemory.admin.sessions.conversation.base import ConversationPage
from chatmemory.admin.text import number_of, visible
from chatmemory.errors import ChatMemoryError
from chatmemory.models import MAX_NOTE_CHARS, AuditAction, Session


class NoteForm(forms.Form):
    """The text of a new note."""

    text = forms.CharField(
        label=gettext_lazy("Note"),
        help_text=gettext_lazy("Only operators read it."),
        max_length=MAX_NOTE_CHARS,
        widget=forms.Textarea(attrs={"rows": 3}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRow:
    """A note as the page shows it."""

    pk: int
    author: str
    text: str
    created_at: datetime


def notes_of(request: HttpRequest, session: Session) -> list[NoteRow]:
    """Return the notes of a session, the newest first."""
    return [
        NoteRow(
            pk=note.pk,
            author=visible(note.actor_label),
            text=visible(note_text(request, session, note.text)),
            created_at=note.created_at,
        )
        for note in session.notes.order_by("-pk")
    ]


class NotesView(ConversationPage):
    """Adds a note, or deletes one."""

    permission = "note_session"

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return redirect(self.page_url(self.session.pk, fragment="notes"))

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        session = self.session
        form = NoteForm(request.POST)
        note_pk = number_of(request.POST.get("delete", ""))
        if note_pk is None and not form.is_valid():
            return self._refused(session, form)
        try:
            if note_pk is not None:
                entry = services.delete_note(note_pk=note_pk, **self._session_address(session))
            else:
                entry = services.add_note(
                    text=form.cleaned_data["text"], **self._session_address(session)
                )
        except ChatMemoryError as error:
            form.add_error(None, error_text(error))
            return self._refused(session, form)
        if entry is not None:
            self.log(
                session, _("Note added") if entry.action == AuditAction.NOTE else _("Note deleted")
            )
        return redirect(self.page_url(session.pk, fragment="notes"))

    def _refused(self, session: Session, form: NoteForm) -> HttpResponse:
        """Return the form with its errors and the text, so that it is not lost."""
        return self.render("note.html", session, title=_("Note"), form=form)

    def _session_address(self, session: Session) -> dict[str, Any]:
        return {
            "session_key": session.key,
            "scope": session.removed_scope or session.scope,
            "session_pk": session.pk,
            "by": operator(self.request),
        }
