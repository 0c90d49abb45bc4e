"""Redaction from the page of a session: of a message, and of the same text elsewhere in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from chatmemory import services
from chatmemory.admin.focus import focus_first
from chatmemory.admin.jobs.words import error_text
from chatmemory.admin.readonly import operator
from chatmemory.admin.sessions.conversation.base import ConversationPage
from chatmemory.admin.sessions.conversation.positions import Span
from chatmemory.admin.sessions.conversation.search import (
    CONTEXT_CHARS,
    MAX_QUERY_CHARS,
    Found,
    Snippet,
    cut_out,
    find_text,
    snippet_of,
)
from chatmemory.admin.text import number_of, truncate, visible
from chatmemory.errors import ChatMemoryError
from chatmemory.models import Message, Session, Turn, TurnQuerySet
from chatmemory.services.audit.entries import is_erased
from chatmemory.services.redaction.find_text import other_finds, turns_containing
from chatmemory.services.redaction.matching import (
    occurrence_in,
    occurrence_in_turn,
    reason_of,
)

MAX_CHOSEN = 100
"""Messages and turns that one request redacts in addition to the first."""

SHOWN_CHARS = 2_000


class RedactionForm(forms.Form):
    """The reason, the text to find, and the number of texts to redact, typed to confirm."""

    text = forms.CharField(
        label=gettext_lazy("Text to find"),
        help_text=gettext_lazy(
            "For example a leaked key. Find the other messages of this conversation that contain "
            "it, such as the reply that repeats it."
        ),
        required=False,
        max_length=MAX_QUERY_CHARS,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Recorded in the audit with your name. Do not repeat the text."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )
    count = forms.IntegerField(
        label=gettext_lazy("Texts to redact"),
        help_text=gettext_lazy(
            "Type the number of texts to confirm: this one and the selected ones."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A message or turn that contains the text."""

    name: str
    value: int
    title: str
    snippet: Snippet
    is_chosen: bool
    obstacle: str = ""
    """Why it cannot be redacted; empty if it can."""


class RedactionView(ConversationPage):
    """Previews and confirms the redaction of a message, or of a turn's unstored text."""

    permission = "redact_message"
    further_permissions = ("view_transcript",)

    def get(self, request: HttpRequest, pk: int, **subject: int) -> HttpResponse:
        session = self.session
        return self._preview_page(session, self._subject(session), RedactionForm())

    def post(self, request: HttpRequest, pk: int, **subject: int) -> HttpResponse:
        session = self.session
        chosen = self._subject(session)
        form = RedactionForm(request.POST)
        form.full_clean()
        if "find" in request.POST or "older" in request.POST:
            for name in ("reason", "count"):
                form.errors.pop(name, None)
            return self._preview_page(session, chosen, form, self._find_texts(session, form))
        others = self._chosen(session)
        if form.is_valid() and form.cleaned_data["count"] != 1 + len(others):
            selected = _("Selected now: %(count)s. Check the list and type this number.")
            form.add_error("count", selected % {"count": 1 + len(others)})
        if form.is_valid():
            return self._redact_texts(session, [chosen, *others], form.cleaned_data["reason"])
        return self._preview_page(session, chosen, form, self._find_texts(session, form))

    def _subject(self, session: Session) -> Message | Turn:
        """Return the message or turn of the address. Raises Http404."""
        found: Message | Turn | None
        if "seq" in self.kwargs:
            found = Message.stored.filter(session=session, seq=self.kwargs["seq"]).first()
        else:
            found = _unstored(session).filter(pk=self.kwargs["turn"]).first()
        if found is None or (session.removed_at is not None and is_erased(session.pk)):
            raise Http404
        return found

    def _chosen(self, session: Session) -> list[Message | Turn]:
        """Return the selected messages and turns, without that of the address."""
        rows = Message.stored.filter(session=session, seq__in=self._posted_numbers("also"))
        turns = _unstored(session).filter(pk__in=self._posted_numbers("turns"))
        subject = self._subject(session)
        found: list[Message | Turn] = [*rows.order_by("seq"), *turns.order_by("pk")]
        return [each for each in found if each != subject]

    def _posted_numbers(self, name: str) -> list[int]:
        values = map(number_of, self.request.POST.getlist(name)[:MAX_CHOSEN])
        return [value for value in values if value is not None]

    def _find_texts(self, session: Session, form: RedactionForm) -> Found | None:
        """Search the next part of the session for the text; None without a text."""
        text = form.cleaned_data.get("text", "")
        if not text:
            return None
        before = number_of(self.request.POST.get("older", ""))
        high = session.last_seq if before is None else before - 1
        return find_text(session, text, Span(low=session.stored_from, high=high))

    def _redact_texts(
        self, session: Session, texts: Sequence[Message | Turn], reason: str
    ) -> HttpResponse:
        """Redact each text in a transaction of its own, and report the results."""
        address: dict[str, Any] = {
            "session_key": session.key,
            "scope": session.removed_scope or session.scope,
            "session_pk": session.pk,
            "by": operator(self.request),
            "reason": reason,
        }
        count = 0
        try:
            for text in texts:
                if isinstance(text, Message):
                    entry = services.redact_message(seq=text.seq, **address)
                else:
                    entry = services.redact_turn(turn=text.client_id, **address)
                count += entry is not None
        except ChatMemoryError as error:
            messages.error(self.request, error_text(error))
        done = ngettext("{count} text was redacted.", "{count} texts were redacted.", count)
        messages.success(self.request, format_html(done, count=count))
        if count:
            self.log(session, _("Redacted: %(count)s") % {"count": count})
        seq = self.kwargs.get("seq")
        return redirect(self.page_url(session.pk, fragment=f"m{seq}" if seq else "", seq=seq))

    def _preview_page(
        self,
        session: Session,
        subject: Message | Turn,
        form: RedactionForm,
        found: Found | None = None,
    ) -> HttpResponse:
        """Return the page that shows what is redacted, and where the text is too."""
        text = form.cleaned_data.get("text", "") if form.is_bound else ""
        matches = self._matches(session, subject, text, found)
        whole = subject.text if isinstance(subject, Message) else _text_of(subject)
        shown, is_cut = truncate(whole, SHOWN_CHARS)
        seqs = [subject.seq] if isinstance(subject, Message) else []
        focus_first(form, form.fields)
        self.record_reading(session, [*seqs, *(m.value for m in matches if m.name == "also")])
        return self.render(
            "redact.html",
            session,
            title=_("Redact"),
            subject=subject,
            shown=shown + ("…" if is_cut else ""),
            form=AdminForm(form, [(None, {"fields": ["text", "reason", "count"]})], {}),  # type: ignore[arg-type]  # takes any form
            errors=form.errors,
            found=found,
            text=text,
            matches=matches,
            elsewhere=_elsewhere(session, text),
        )

    def _matches(
        self, session: Session, subject: Message | Turn, text: str, found: Found | None
    ) -> list[Match]:
        chosen = self._chosen(session) if self.request.method == "POST" else []
        rows = {row.pk: row for row in chosen if isinstance(row, Message)}
        turns = {turn.pk: turn for turn in chosen if isinstance(turn, Turn)}
        if found is not None:
            rows |= {hit.message.pk: hit.message for hit in found.hits}
            turns |= {turn.pk: turn for turn in _turns_with(session, text, found)}
        # A new search selects all that it finds; a rejected form keeps the selection.
        is_search = {"find", "older"} & self.request.POST.keys()
        others: list[Message | Turn] = [
            *sorted(rows.values(), key=lambda row: row.seq),
            *turns.values(),
        ]
        return [
            _match(each, text, is_chosen=bool(is_search) or each in chosen)
            for each in others
            if each != subject
        ]


def _match(found: Message | Turn, text: str, *, is_chosen: bool) -> Match:
    if isinstance(found, Message):
        role = str(dict(Message.Role.choices).get(found.role, found.role))
        return Match(
            name="also",
            value=found.seq,
            title=_("Message %(seq)s, %(role)s") % {"seq": found.seq, "role": role},
            snippet=snippet_of(found, text) or _start_snippet(found.text),
            is_chosen=is_chosen,
        )
    snippet = occurrence_in_turn(found, text) or occurrence_in(reason_of(found), text)
    is_running = found.status == Turn.Status.RUNNING
    return Match(
        name="turns",
        value=found.pk,
        title=_title_of(found),
        snippet=cut_out(snippet) if snippet else _start_snippet(_text_of(found)),
        is_chosen=is_chosen and not is_running,
        obstacle=_("It runs: stop it first.") if is_running else "",
    )


def _title_of(turn: Turn) -> str:
    if not turn.asked and not turn.partial:
        return _("Feedback on the reply to message %(seq)s") % {"seq": turn.user_seq}
    return _("Turn without a message, %(status)s") % {"status": Turn.Status(turn.status).label}


def _start_snippet(text: str) -> Snippet:
    return Snippet(before="", found="", after=visible(text[:CONTEXT_CHARS]))


def _unstored(session: Session) -> TurnQuerySet:
    """Return the turns with text that no message contains, or with a reason of their feedback."""
    return session.turns.with_reason().filter(~Q(asked="", partial="") | Q(reason__gt=""))


def _turns_with(session: Session, text: str, found: Found) -> list[Turn]:
    """Return the turns of the searched part, and those without a message, that contain a text."""
    searched = Q(user_seq__isnull=True) | Q(user_seq__gte=found.low, user_seq__lte=found.high)
    return list(islice(turns_containing(session.turns.filter(searched), text), MAX_CHOSEN))


def _text_of(turn: Turn) -> str:
    return "\n".join(filter(None, (turn.asked_text, turn.partial, reason_of(turn))))


def _elsewhere(session: Session, text: str) -> list[str]:
    """Return the names of what contains the text and is not redacted here."""
    if not text:
        return []
    names = {
        "title": _("the title"),
        "instructions": _("the instructions"),
        "metadata": _("the metadata"),
        "note": _("the notes"),
    }
    found = {find.field for find in other_finds([session.pk], text)}
    return [name for field, name in names.items() if field in found]
