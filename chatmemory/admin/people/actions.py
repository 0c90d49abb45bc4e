"""The export and the erasure of everything that is stored of a person."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from chatmemory import formats, services
from chatmemory.admin.export_format import proposed_format, remember_format
from chatmemory.admin.jobs.words import error_text
from chatmemory.admin.people.pages import PersonPage, person_url
from chatmemory.admin.privacy import visible_names
from chatmemory.admin.readonly import operator
from chatmemory.admin.text import grouped
from chatmemory.errors import ChatMemoryError
from chatmemory.services import Erased
from chatmemory.services.erasure.erasure import erase_person_soon

MAX_ERASED_AT_ONCE = 2_000
"""An erasure of more messages runs in the background, not in the request."""

FORMATS = {"jsonl": _("JSON Lines, to import"), "markdown": _("Markdown"), "csv": _("CSV")}

NOT_WHOLE = _(
    "This person has conversations that you cannot view. Ask an operator who can view all of them."
)


class ReasonForm(forms.Form):
    """The reason for the audit, of any length: the audit entry truncates it."""

    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Recorded in the audit with your name."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class ExportForm(ReasonForm):
    """Asks for a reason and the format of the file."""

    format = forms.ChoiceField(label=_("Format"), choices=[*FORMATS.items()])
    field_order = ("format", "reason")


class EraseForm(ReasonForm):
    """Asks for a reason and the person's name, so that the operator has to read the name."""

    confirm = forms.CharField(
        label=_("Name"), widget=forms.TextInput(attrs={"class": "vTextField"})
    )

    def __init__(self, *args: Any, name: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.name = name
        # Django prints it as HTML, and a username may be one.
        self.fields["confirm"].help_text = format_html(
            gettext("Type {name} to confirm."), name=name
        )

    def clean_confirm(self) -> str:
        """Refuse another name. Raises ValidationError."""
        given: str = self.cleaned_data["confirm"]
        if given != self.name:
            raise forms.ValidationError(_("Type the name exactly as shown."))
        return given


class PersonAction(PersonPage):
    """A page with a form that acts on all sessions of the person."""

    template = ""

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.show(self.make_form())

    def post(self, request: HttpRequest) -> HttpResponseBase:
        form = self.make_form(request.POST)
        if not form.is_valid():
            return self.show(form)
        if not self.is_whole():
            form.add_error(None, str(NOT_WHOLE))
            return self.show(form)
        try:
            return self.perform(form.cleaned_data)
        except ChatMemoryError as error:
            form.add_error(None, error_text(error))
            return self.show(form)

    def make_form(self, data: Any = None) -> forms.Form:
        """Return the form, with the data of the request."""
        raise NotImplementedError

    def perform(self, given: dict[str, Any]) -> HttpResponseBase:
        """Perform the confirmed action. Raises ChatMemoryError."""
        raise NotImplementedError

    def show(self, form: forms.Form, **context: object) -> HttpResponse:
        """Return the page with the form."""
        return self.render(
            self.template,
            person=self.person,
            form=AdminForm(form, [(None, {"fields": [*form.fields]})], {}),  # type: ignore[arg-type]  # takes any form
            errors=form.errors,
            non_field_errors=form.non_field_errors(),
            **context,
        )


class ExportView(PersonAction):
    """Downloads all sessions of a person, after an entry in the audit."""

    permissions = ("export_history",)
    title = _("Export")
    template = "export.html"

    def make_form(self, data: Any = None) -> forms.Form:
        return ExportForm(data, initial={"format": proposed_format(self.request, FORMATS)})

    def perform(self, given: dict[str, Any]) -> HttpResponseBase:
        export = services.begin_export(by=operator(self.request), scope=self.scope, **given)
        remember_format(self.request, given["format"])
        return formats.download(export, self.request, of=self.scope)


class EraseView(PersonAction):
    """Previews the erasure of a person, and performs it after confirmation."""

    permissions = ("erase_person",)
    title = _("Erase")
    template = "erase.html"

    def make_form(self, data: Any = None) -> forms.Form:
        return EraseForm(data, name=self.person.label)

    def show(self, form: forms.Form, **context: object) -> HttpResponse:
        preview = self.preview()
        held = visible_names(self.model_admin, self.request, preview.held)
        problem = "" if self.is_whole() else NOT_WHOLE
        return super().show(form, preview=preview, held=held, problem=problem, **context)

    def preview(self) -> Erased:
        return services.preview_erasure(by=operator(self.request), scope=self.scope)

    def perform(self, given: dict[str, Any]) -> HttpResponseBase:
        of = {"by": operator(self.request), "reason": given["reason"], "scope": self.scope}
        if self.preview().messages > MAX_ERASED_AT_ONCE:
            erase_person_soon(**of)
            messages.info(
                self.request,
                _("The erasure has started. This page shows its receipt when it is complete."),
            )
        else:
            self.report(services.erase_person(**of))
        return redirect(person_url(self.model_admin, self.scope))

    def report(self, erased: Erased) -> None:
        """Show what was deleted, and the ID of the receipt."""
        receipt = "" if erased.entry is None else erased.entry.pk
        counts = {"n": grouped(erased.sessions), "messages": grouped(erased.messages)}
        done = gettext("Conversations erased: {n}. Messages: {messages}. Receipt: {receipt}.")
        messages.success(self.request, format_html(done, receipt=receipt, **counts))
        if erased.held:
            kept = gettext("Conversations kept because of a hold: {n}.")
            messages.warning(self.request, format_html(kept, n=grouped(len(erased.held))))
