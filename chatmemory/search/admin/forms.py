"""The form of a search."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.people.actions import ReasonForm
from chatmemory.search.reading import ROLES
from chatmemory.search.searching import MAX_QUERY_CHARS

FIELDS = ("words", "mode", "role", "reason")


class SearchForm(ReasonForm):
    """Asks for the words, how to find them, and a reason."""

    words = forms.CharField(
        label=_("Words"),
        max_length=MAX_QUERY_CHARS,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )
    mode = forms.ChoiceField(
        label=_("Find"),
        choices=[
            ("words", _("Any of the words, also in other forms")),
            ("prefix", _("Any of the words; the last one can be a beginning")),
            ("phrase", _("Exactly this phrase")),
        ],
    )
    role = forms.ChoiceField(
        label=_("In messages of"),
        required=False,
        choices=[("", _("All roles")), *((role.value, role.label) for role in ROLES)],
    )
    field_order = FIELDS
