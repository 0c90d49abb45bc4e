"""The forms that confirm an action."""

from __future__ import annotations

from datetime import datetime, time
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext_lazy as _

from chatmemory import formats
from chatmemory.admin.jobs.words import EXPORT
from chatmemory.admin.text import number_of
from chatmemory.models import MAX_TAG_CHARS, JobAction

KEEP_LAST = 50
"""The most messages that a trim keeps unless the operator changes it."""

_WIDE = {"class": "vTextField"}


class ActionForm(forms.Form):
    """The reason, and what the preview showed: the number, and its time in milliseconds.

    The audit truncates a long reason.
    """

    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Recorded in the audit with your name."),
        widget=forms.TextInput(attrs=_WIDE),
    )
    count = forms.IntegerField(
        required=False, help_text=_("Type this number to confirm."), widget=forms.HiddenInput
    )
    seen_at = forms.IntegerField(
        required=False, min_value=0, max_value=2**53, widget=forms.HiddenInput
    )

    def __init__(self, data: Any = None, *, typed: str = "", initial: Any = None) -> None:
        """`typed` is the label of the number, if the operator must type it."""
        super().__init__(data, initial=initial)
        if typed:
            count = self.fields["count"]
            count.widget, count.label, count.required = forms.NumberInput(), typed, True

    def params(self) -> dict[str, Any]:
        """Return the arguments of the action from the cleaned data; incomplete after errors."""
        return {}


class SeenForm(ActionForm):
    """Passes on the time of the preview: see `services/jobs/actions.py`."""

    def params(self) -> dict[str, Any]:
        seen_at = self.cleaned_data.get("seen_at")
        return {} if seen_at is None else {"seen_at": seen_at}


class TrimForm(ActionForm):
    """Asks for a reason, and what to keep."""

    limit = forms.ChoiceField(
        label=_("Limit"),
        choices=[
            ("keep_last", _("Keep the newest messages")),
            ("keep_turns", _("Keep the newest turns")),
            ("keep_tokens", _("Keep the newest messages with at most this number of tokens")),
            ("before", _("Remove messages before a date")),
            ("before_seq", _("Remove messages below a number")),
        ],
    )
    value = forms.CharField(
        label=_("Number or date"),
        help_text=_(
            "A date as 2026-01-31 or 2026-01-31 08:00. Turns are kept whole, so a few more "
            "messages may remain."
        ),
    )
    field_order = ("limit", "value", "reason", "count")

    def clean(self) -> dict[str, Any]:
        limit, value = self.cleaned_data.get("limit"), self.cleaned_data.get("value")
        if limit and value is not None:
            read = _read_time if limit == "before" else number_of
            if (found := read(value)) is None:
                error = _("Enter a date.") if limit == "before" else _("Enter a whole number.")
                self.add_error("value", error)
            self.cleaned_data["value"] = found
        return self.cleaned_data

    def params(self) -> dict[str, Any]:
        limit, value = self.cleaned_data.get("limit"), self.cleaned_data.get("value")
        return {limit: value} if limit and value is not None else {}


class TagForm(ActionForm):
    """Asks for a reason and the tag."""

    tag = forms.CharField(
        label=_("Tag"), max_length=MAX_TAG_CHARS, widget=forms.TextInput(attrs=_WIDE)
    )
    field_order = ("tag", "reason", "count")

    def params(self) -> dict[str, Any]:
        tag = self.cleaned_data.get("tag")
        return {"tag": tag} if tag else {}


class ExportForm(ActionForm):
    """Asks for a reason and the format of the file."""

    format = forms.ChoiceField(
        label=_("Format"),
        choices=[(name, name) for name in formats.FORMATS if not name.startswith("own-")],
        help_text=_("Only jsonl can be imported again without loss."),
    )
    field_order = ("format", "reason", "count")


FORMS: dict[str, type[ActionForm]] = {
    JobAction.TRIM: TrimForm,
    JobAction.TAG: TagForm,
    JobAction.UNTAG: TagForm,
    JobAction.CLEAR: SeenForm,
    JobAction.RESTORE: SeenForm,
    JobAction.STOP: SeenForm,
    EXPORT: ExportForm,
}
"""The forms of actions with arguments."""


def _read_time(text: str) -> str | None:
    """Return the time as ISO 8601 with its zone; None if the text is no date."""
    try:
        day, moment = parse_date(text), parse_datetime(text)
        if moment is None and day is not None:
            moment = datetime.combine(day, time())
        if moment is not None and timezone.is_naive(moment):
            moment = timezone.make_aware(moment)
    except (ValueError, OverflowError):
        return None
    return None if moment is None else moment.isoformat()
