"""Trim, clear and purge: a page that says what will go, and acts when it is confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
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

MOST_AT_ONCE = 100
KEEP_LAST = 50
"""How many messages a trim keeps unless another number is given."""

NOTHING = services.Preview(messages=0, is_held=False)
"""For a session from which nothing is removed."""


class RemovalForm(forms.Form):
    """Why, and how many messages the operator was shown. A long reason is cut in the audit."""

    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Stays in the audit, with your name."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    count = forms.IntegerField(required=False, widget=forms.HiddenInput)


class TrimForm(RemovalForm):
    """How many messages stay, too."""

    keep_last = forms.IntegerField(
        label=_("Keep the last"),
        help_text=_("Messages of each session. A turn is never cut, so a few more may stay."),
        min_value=0,
        initial=KEEP_LAST,
    )
    field_order = ("keep_last", "reason", "count")


class PurgeForm(RemovalForm):
    """The count is typed, which shows that it was read."""

    count = forms.IntegerField(
        label=_("Messages that go"), help_text=_("Type their number to confirm.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """A session on the page, and what the removal does to it, if the form says that."""

    session: Session
    name: str
    state: State
    preview: services.Preview | None

    @property
    def goes(self) -> int | None:
        return None if self.preview is None else self.preview.messages

    @property
    def notes(self) -> list[str]:
        """Return what else the removal ends."""
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
    def stays(self) -> int | None:
        return None if self.goes is None else self.session.message_count - self.goes


class RemovalView(SessionPage):
    """Removes from the sessions that `?session=` names, each in a transaction of its own."""

    form_class: type[RemovalForm] = RemovalForm
    title: ClassVar[str | Promise]
    explanation: ClassVar[str | Promise]
    keeps: ClassVar[Collection[State]] = (State.PURGED, State.EXPIRED, State.HELD)
    """States in which nothing is removed."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.page(self.form_class(), self.doomed({"keep_last": KEEP_LAST}))

    def post(self, request: HttpRequest) -> HttpResponse:
        form = self.form_class(request.POST)
        form.full_clean()
        doomed = self.doomed(form.cleaned_data)
        if "look" in request.POST:
            form.errors.pop("reason", None)
        elif form.is_valid():
            total = _total(doomed)
            if form.cleaned_data["count"] == total:
                self.remove_all(doomed, form.cleaned_data)
                return redirect("admin:chatmemory_session_changelist")
            field = None if form["count"].is_hidden else "count"
            form.add_error(field, _("Now it is %(count)s.") % {"count": total})
        return self.page(form, doomed)

    def page(self, form: RemovalForm, doomed: Sequence[Doomed]) -> HttpResponse:
        """What will go, and the form to confirm it."""
        fields = [field.name for field in form.visible_fields()]
        context = {
            **self.model_admin.admin_site.each_context(self.request),
            "opts": Session._meta,
            "title": self.title,
            "explanation": self.explanation,
            "doomed": doomed,
            "total": _total(doomed),
            "form": AdminForm(form, [(None, {"fields": fields})], {}),  # type: ignore[arg-type]  # takes any form
            "errors": form.errors,
            "non_field_errors": form.non_field_errors(),
            "can_look": "keep_last" in form.fields,
            "is_typed": not form["count"].is_hidden,
        }
        return TemplateResponse(self.request, "admin/chatmemory/session/removal.html", context)

    def doomed(self, given: Mapping[str, Any]) -> list[Doomed]:
        """Return the sessions that the query names, and how many messages each will lose."""
        return [
            Doomed(
                session=session,
                name=visible(str(session)),
                state=(state := state_of(session)),
                preview=NOTHING if state in self.keeps else self.preview(session, given),
            )
            for session in self.permitted()
        ]

    def named(self) -> QuerySet[Session]:
        named = self.request.GET.getlist("session")
        pks = [int(pk) for pk in named if pk.isascii() and pk.isdecimal() and len(pk) < 19]
        sessions = self.model_admin.get_queryset(self.request)
        return sessions.filter(pk__in=pks[:MOST_AT_ONCE]).select_related("owner")

    def preview(self, session: Session, given: Mapping[str, Any]) -> services.Preview | None:
        """Return what the removal does to a session; None while the form does not say."""
        return services.preview_removal(session)

    def remove(self, given: Mapping[str, Any], **of: Any) -> AuditEntry | None:
        """Remove them."""
        raise NotImplementedError

    def remove_all(self, doomed: Sequence[Doomed], given: Mapping[str, Any]) -> None:
        """Remove from one session after the other, and say what became of them."""
        by = operator(self.request)
        gone: list[int] = []
        refused: Counter[str] = Counter()
        for session in (row.session for row in doomed):
            address = {
                "session_key": session.key,
                "scope": session.scope,
                "session_pk": session.pk,
                "by": by,
            }
            try:
                entry = self.remove(given, reason=given["reason"], **address)
            except NotFound:
                refused[str(_("Already gone"))] += 1
            except ChatMemoryError as error:
                refused[str(error)] += 1
            else:
                gone.append(_removed(entry))
                self.log(session, gone[-1])
        self.report(gone, refused)

    def log(self, session: Session, count: int) -> None:
        """Write into the admin's own history, which may outlive the person: no title, no key."""
        LogEntry.objects.create(
            user_id=operator(self.request).id,
            content_type=ContentType.objects.get_for_model(Session),
            object_id=str(session.pk),
            object_repr=f"{Session._meta.verbose_name} {session.pk}",
            action_flag=CHANGE,
            change_message=f"{self.title}: {count}",
        )

    def report(self, gone: Sequence[int], refused: Mapping[str, int]) -> None:
        """Tell the operator, on the next page."""
        if gone:
            told = ngettext(
                "%(title)s of one session. Messages gone: %(messages)s.",
                "%(title)s of %(sessions)s sessions. Messages gone: %(messages)s.",
                len(gone),
            )
            counts = {"title": self.title, "sessions": len(gone), "messages": sum(gone)}
            messages.success(self.request, told % counts)
        for why, times in refused.items():
            messages.warning(self.request, f"{why} ({times})" if times > 1 else why)


class TrimView(RemovalView):
    """Hides the oldest messages."""

    form_class = TrimForm
    permission = "trim_history"
    title = _("Trim")
    explanation = _("The oldest messages go; the last ones stay.")

    def preview(self, session: Session, given: Mapping[str, Any]) -> services.Preview | None:
        keep_last = given.get("keep_last")
        if keep_last is None:
            return None
        return services.preview_trim(session, keep_last=keep_last)

    def remove(self, given: Mapping[str, Any], **of: Any) -> AuditEntry | None:
        return services.trim_session(keep_last=given["keep_last"], **of)


class ClearView(RemovalView):
    """Hides all messages."""

    permission = "trim_history"
    title = _("Clear")
    explanation = _(
        "All messages go; the empty session stays. A reply that is being written ends without a "
        "message, and waiting messages are cancelled."
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
        "The sessions go, with all their messages. A reply that is being written ends without a "
        "message, and waiting messages are cancelled."
    )

    def remove(self, given: Mapping[str, Any], **of: Any) -> AuditEntry:
        return services.purge_session(**of)


def _total(doomed: Sequence[Doomed]) -> int | None:
    """How many messages go; None if nobody can say."""
    counts = [row.goes for row in doomed]
    return None if None in counts else sum(filter(None, counts))


def _removed(entry: AuditEntry | None) -> int:
    return 0 if entry is None else entry.counts["messages"]
