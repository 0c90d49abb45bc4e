"""Trim, clear and purge: pages that preview a removal and perform it after confirmation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from chatmemory import services
from chatmemory.admin.pages import SessionPage
from chatmemory.admin.readonly import operator
from chatmemory.admin.states import State, state_of
from chatmemory.admin.text import visible
from chatmemory.errors import ChatMemoryError, NotFound
from chatmemory.models import AuditEntry, Session

MAX_SESSIONS = 100
KEEP_LAST = 50
"""The default number of messages that a trim keeps."""

NOTHING = services.Preview(messages=0, is_held=False)
"""The preview for a session from which nothing is removed."""


class RemovalForm(forms.Form):
    """The reason, and the number of messages that the preview showed.

    The audit entry truncates a long reason.
    """

    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Recorded in the audit with your name."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    count = forms.IntegerField(required=False, widget=forms.HiddenInput)


class TrimForm(RemovalForm):
    """Also asks how many messages to keep."""

    keep_last = forms.IntegerField(
        label=_("Messages to keep"),
        help_text=_("The newest of each session. Turns are kept whole, so a few more may remain."),
        min_value=0,
        initial=KEEP_LAST,
    )
    field_order = ("keep_last", "reason", "count")


class PurgeForm(RemovalForm):
    """Asks for the number of messages, so that the operator has to read it."""

    count = forms.IntegerField(
        label=_("Messages to remove"), help_text=_("Type this number to confirm.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session on the page; `preview` is None while the form is incomplete."""

    session: Session
    name: str
    state: State
    preview: services.Preview | None

    @property
    def removed_count(self) -> int | None:
        return None if self.preview is None else self.preview.messages

    @property
    def notes(self) -> list[str]:
        """Return what the removal ends in addition to stored messages."""
        if self.preview is None:
            return []
        notes = []
        if waiting := self.preview.waiting:
            note = ngettext("%(count)s waiting message", "%(count)s waiting messages", waiting)
            notes.append(note % {"count": waiting})
        if self.preview.ends_run:
            chars = self.preview.partial_chars
            note = ngettext(
                "an unfinished reply of %(count)s character",
                "an unfinished reply of %(count)s characters",
                chars,
            )
            notes.append(note % {"count": chars})
        return notes

    @property
    def kept_count(self) -> int | None:
        removed = self.removed_count
        return None if removed is None else self.session.message_count - removed


class RemovalView(SessionPage):
    """Removes from the sessions that `?session=` names, each in its own transaction."""

    form_class: type[RemovalForm] = RemovalForm
    title: ClassVar[str | Promise]
    explanation: ClassVar[str | Promise]
    keeps: ClassVar[Collection[State]] = (State.PURGED, State.EXPIRED, State.HELD)
    """States of sessions from which nothing is removed."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.render(self.form_class(), self.session_rows({"keep_last": KEEP_LAST}))

    def post(self, request: HttpRequest) -> HttpResponse:
        form = self.form_class(request.POST)
        form.full_clean()
        rows = self.session_rows(form.cleaned_data)
        if "preview" in request.POST:
            form.errors.pop("reason", None)
        elif form.is_valid():
            total = _total(rows)
            if form.cleaned_data["count"] == total:
                self.remove_all(rows, form.cleaned_data)
                return redirect(self.model_admin.url_of("session_changelist"))
            field = None if form["count"].is_hidden else "count"
            changed = _("Messages to remove now: %(count)s. Check the table and confirm again.")
            form.add_error(field, changed % {"count": total})
        return self.render(form, rows)

    def render(self, form: RemovalForm, rows: Sequence[SessionRow]) -> HttpResponse:
        """Return the preview, and the form that confirms the removal."""
        fields = [field.name for field in form.visible_fields()]
        context = {
            **self.model_admin.admin_site.each_context(self.request),
            "opts": Session._meta,
            "title": self.title,
            "explanation": self.explanation,
            "rows": rows,
            "total": _total(rows),
            "form": AdminForm(form, [(None, {"fields": fields})], {}),  # type: ignore[arg-type]  # takes any form
            "errors": form.errors,
            "non_field_errors": form.non_field_errors(),
            "has_preview_button": "keep_last" in form.fields,
            "is_count_typed": not form["count"].is_hidden,
        }
        return TemplateResponse(self.request, "admin/chatmemory/session/removal.html", context)

    def session_rows(self, given: Mapping[str, Any]) -> list[SessionRow]:
        """Return the permitted sessions, with the effect of the removal for these form values."""
        return [
            SessionRow(
                session=session,
                name=visible(str(session)),
                state=(state := state_of(session)),
                preview=NOTHING if state in self.keeps else self.preview(session, given),
            )
            for session in self.permitted_sessions()
        ]

    def requested_sessions(self) -> QuerySet[Session]:
        values = self.request.GET.getlist("session")
        pks = [int(pk) for pk in values if pk.isascii() and pk.isdecimal() and len(pk) < 19]
        sessions = self.model_admin.get_queryset(self.request)
        return sessions.filter(pk__in=pks[:MAX_SESSIONS]).select_related("owner")

    def preview(self, session: Session, given: Mapping[str, Any]) -> services.Preview | None:
        """Return the effect on a session; None if the form is incomplete."""
        return services.preview_removal(session)

    def remove(self, given: Mapping[str, Any], **of: Any) -> AuditEntry | None:
        """Call the service for the session that `of` addresses."""
        raise NotImplementedError

    def remove_all(self, rows: Sequence[SessionRow], given: Mapping[str, Any]) -> None:
        """Remove from each session, log each removal, and report the results."""
        by = operator(self.request)
        removed: list[int] = []
        refused: Counter[str] = Counter()
        for session in (row.session for row in rows):
            address = {
                "session_key": session.key,
                "scope": session.scope,
                "session_pk": session.pk,
                "by": by,
            }
            try:
                entry = self.remove(given, reason=given["reason"], **address)
            except NotFound:
                refused[str(_("The session was already removed."))] += 1
            except ChatMemoryError as error:
                refused[str(error)] += 1
            else:
                removed.append(_removed_count(entry))
                self.log(session, f"{self.title}: {removed[-1]}")
        self.report(removed, refused)

    def report(self, removed: Sequence[int], refused: Mapping[str, int]) -> None:
        """Show the results on the operator's next page.

        `removed` has one message count per session, `refused` the number of sessions per error.
        """
        if removed:
            text = ngettext(
                "%(title)s: one session done. Messages removed: %(messages)s.",
                "%(title)s: %(sessions)s sessions done. Messages removed: %(messages)s.",
                len(removed),
            )
            counts = {"title": self.title, "sessions": len(removed), "messages": sum(removed)}
            messages.success(self.request, text % counts)
        for error, times in refused.items():
            messages.warning(self.request, f"{error} ({times})" if times > 1 else error)


class TrimView(RemovalView):
    """Hides the oldest messages of each session."""

    form_class = TrimForm
    permission = "trim_history"
    title = _("Trim")
    explanation = _("Removes the oldest messages of each session and keeps the newest.")

    def preview(self, session: Session, given: Mapping[str, Any]) -> services.Preview | None:
        keep_last = given.get("keep_last")
        if keep_last is None:
            return None
        return services.preview_trim(session, keep_last=keep_last)

    def remove(self, given: Mapping[str, Any], **of: Any) -> AuditEntry | None:
        return services.trim_session(keep_last=given["keep_last"], **of)


class ClearView(RemovalView):
    """Hides all messages of each session."""

    permission = "trim_history"
    title = _("Clear")
    explanation = _(
        "Removes all messages and keeps the empty session. A running reply is stopped and not "
        "stored; waiting messages are cancelled."
    )

    def remove(self, given: Mapping[str, Any], **of: Any) -> AuditEntry:
        return services.clear_session(**of)


class PurgeView(RemovalView):
    """Removes sessions with all their messages."""

    form_class = PurgeForm
    keeps = (State.PURGED, State.HELD)
    permission = "purge_history"
    title = _("Purge")
    explanation = _(
        "Removes the sessions and all their messages. A running reply is stopped and not stored; "
        "waiting messages are cancelled."
    )

    def remove(self, given: Mapping[str, Any], **of: Any) -> AuditEntry:
        return services.purge_session(**of)


def _total(rows: Sequence[SessionRow]) -> int | None:
    """Return the number of messages to remove; None if a count is unknown."""
    counts = [row.removed_count for row in rows]
    return None if None in counts else sum(filter(None, counts))


def _removed_count(entry: AuditEntry | None) -> int:
    return 0 if entry is None else entry.counts["messages"]
