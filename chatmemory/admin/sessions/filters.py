"""Filters of the list of sessions. Each selects by an index, or reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import F, Q, Subquery
from django.db.models.functions import Coalesce
from django.db.models.lookups import LessThanOrEqual
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from chatmemory.access.actors import all_scopes_of, user_scope
from chatmemory.admin.choices import ChoiceFilter, FromFilter, TextFilter, UntilFilter
from chatmemory.admin.people.finding import is_person
from chatmemory.admin.privacy import are_titles_readable
from chatmemory.conf import settings
from chatmemory.errors import ModelError
from chatmemory.models import Feedback, SecondsAfter, Session, SessionTag, StatementNow, Turn
from chatmemory.services import SERVER

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

RECENT_TURNS = 50_000
"""The filter by model reads at most this many turns, since an index of it would cost each turn."""
RECENT_SESSIONS = 50_000
"""The filter for sessions without a message reads at most this many, since they have no index."""
RECENT_DAYS = 30
"""The filters by error and feedback select in this time."""
SOON_DAYS = 7


def _of_turns(**condition: object) -> Q:
    turns = Turn.objects.filter(**condition).order_by()
    # DISTINCT: otherwise PostgreSQL may read the sessions by day, and the turns of each.
    return Q(pk__in=turns.values("session").distinct())


def _ago(days: int) -> Any:
    return StatementNow() - timedelta(days=days)


class StateFilter(ChoiceFilter):
    """By state; without a choice, excludes purged and expired sessions."""

    title = _("state")
    parameter_name = "state"

    @property
    def conditions(self) -> dict[str, tuple[Label, Q]]:  # type: ignore[override]  # new querysets
        return {
            "running": (_("Replying now"), _of_turns(status=Turn.Status.RUNNING)),
            "waiting": (_("Waiting"), _of_turns(status=Turn.Status.WAITING)),
            "archived": (_("Archived"), Q(archived_at__isnull=False)),
            "held": (_("On hold"), Q(held_at__isnull=False)),
            "soon": (_("Expires within 7 days"), _expires_soon()),
            "expired": (_("Expired"), Q(removed_at__isnull=True) & _may_have_expired()),
            "purged": (_("Purged"), Q(removed_at__isnull=False)),
        }

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        chosen = super().queryset(request, queryset)
        match self.value():
            case "purged":
                return chosen
            case "expired":
                return chosen.expired()
            case _:
                return chosen.active()

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        everything, *others = super().choices(changelist)
        yield {**everything, "display": _("Not purged or expired")}
        yield from others


WITHOUT_OWN_END = Q(expires_at__isnull=True, ttl_seconds__isnull=True)
"""The sessions for which `SESSION_TTL` decides."""


def _may_have_expired() -> Q:
    """Match sessions that may have an end in the past; `expired` decides."""
    has_end = Q(expires_at__lte=StatementNow()) | Q(ttl_seconds__isnull=False)
    if settings.SESSION_TTL is None:
        return has_end
    since = datetime.now(UTC) - timedelta(seconds=settings.SESSION_TTL)
    return has_end | Q(WITHOUT_OWN_END, last_active_day__lte=since.date())


def _expires_soon() -> Q:
    in_days = StatementNow() + timedelta(days=SOON_DAYS)
    by_ttl = SecondsAfter(Coalesce("last_message_at", "created_at"), F("ttl_seconds"))
    soon = Q(expires_at__lte=in_days) | Q(LessThanOrEqual(by_ttl, in_days))
    if settings.SESSION_TTL is None:
        return soon
    since = datetime.now(UTC) - timedelta(seconds=settings.SESSION_TTL)
    last = (since + timedelta(days=SOON_DAYS)).date()
    return soon | Q(WITHOUT_OWN_END, last_active_day__lte=last)


class ProblemFilter(ChoiceFilter):
    """By a failed or interrupted turn, also if later turns succeeded."""

    title = _("turns")
    parameter_name = "turns"

    @property
    def conditions(self) -> dict[str, tuple[Label, Q]]:  # type: ignore[override]  # new querysets
        def ended(status: str, days: int) -> Q:
            return _of_turns(status=status, ended_at__gte=_ago(days))

        failed, interrupted = Turn.Status.FAILED, Turn.Status.INTERRUPTED
        return {
            "failed_day": (_("Failed in the last 24 hours"), ended(failed, 1)),
            "failed_week": (_("Failed in the last 7 days"), ended(failed, 7)),
            "interrupted_day": (_("Interrupted in the last 24 hours"), ended(interrupted, 1)),
            "interrupted_week": (_("Interrupted in the last 7 days"), ended(interrupted, 7)),
        }


class ErrorFilter(ChoiceFilter):
    """By the code with which a turn failed in the last 30 days."""

    title = _("error in 30 days")
    parameter_name = "error"

    @property
    def conditions(self) -> dict[str, tuple[Label, Q]]:  # type: ignore[override]  # new querysets
        kinds: list[type[ModelError]] = [ModelError, *ModelError.__subclasses__()]
        failed = {"status": Turn.Status.FAILED, "ended_at__gte": _ago(RECENT_DAYS)}
        return {kind.code: (kind.code, _of_turns(error=kind.code, **failed)) for kind in kinds}


class FeedbackFilter(ChoiceFilter):
    """By recent feedback."""

    title = _("feedback")
    parameter_name = "feedback"

    @property
    def conditions(self) -> dict[str, tuple[Label, Q]]:  # type: ignore[override]  # new querysets
        def given(value: Feedback.Value, days: int) -> Q:
            found = Feedback.objects.filter(value=value, changed_at__gte=_ago(days))
            return Q(pk__in=found.order_by().values("session"))

        return {
            "good": (_("Good in the last 30 days"), given(Feedback.Value.GOOD, RECENT_DAYS)),
            "bad": (_("Bad in the last 30 days"), given(Feedback.Value.BAD, RECENT_DAYS)),
            "bad_week": (_("Bad in the last 7 days"), given(Feedback.Value.BAD, 7)),
        }


class ModelFilter(TextFilter):
    """By the exact name of a model that answered, among the newest 50,000 turns."""

    title = _("model, recently")
    parameter_name = "model"

    def condition(self, text: str) -> Q:
        newest = Turn.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        return _of_turns(model=text, pk__gt=newest - RECENT_TURNS)


class TagFilter(TextFilter):
    """By a tag."""

    title = _("tag")
    parameter_name = "tag"

    def condition(self, text: str) -> Q:
        return Q(pk__in=SessionTag.objects.filter(tag=text).order_by().values("session"))


class MetadataFilter(TextFilter):
    """By a text in the metadata, as `key:text`, where the setting METADATA_FILTERS has the key.

    Only for operators who may read the metadata of each session. It has an index if the host adds
    one.
    """

    title = _("metadata, as key:text")
    parameter_name = "metadata"

    def __init__(
        self, request: HttpRequest, params: Any, model: type[Session], model_admin: Any
    ) -> None:
        super().__init__(request, params, model, model_admin)
        self.is_offered = (
            bool(settings.METADATA_FILTERS)
            and are_titles_readable()
            and model_admin.permits(request, "view_transcript")
            and not model_admin.decides_by_row("view_transcript")
        )

    def has_output(self) -> bool:
        # Django ignores a filter without output: an action on all that match would be on all.
        return self.is_offered or bool(self.text)

    def condition(self, text: str) -> Q | None:
        key, _colon, value = text.partition(":")
        if not self.is_offered or key not in settings.METADATA_FILTERS:
            return None
        return Q(pk__in=Session.objects.having(metadata={key: value}).order_by().values("pk"))


class OwnerFilter(TextFilter):
    """By the username of the owner, or the scope, such as `user:7`."""

    title = _("owner")
    parameter_name = "owner_is"

    def condition(self, text: str) -> Q | None:
        if is_person(text):
            return _of_scope(text)
        users = get_user_model()
        found = users._default_manager.filter(**{users.USERNAME_FIELD: text}).first()
        return None if found is None else _of_scope(user_scope(found))


def _of_scope(scope: str) -> Q:
    return Q(scope__in=all_scopes_of(scope)) | Q(removed_scope=scope)


class ActivityFilter(ChoiceFilter):
    """By the day of the last message, in UTC."""

    title = _("last message")
    parameter_name = "active"

    @property
    def conditions(self) -> dict[str, tuple[Label, Q]]:  # type: ignore[override]  # depends on the current day
        today = datetime.now(UTC).date()
        newest = Subquery(Session.objects.order_by("-pk").values("pk")[:1])

        def ago(days: int) -> date:
            return today - timedelta(days=days)

        return {
            "today": (_("Today"), Q(last_active_day__gte=today)),
            "week": (_("Past 7 days"), Q(last_active_day__gte=ago(7))),
            "month": (_("Past 30 days"), Q(last_active_day__gte=ago(30))),
            "older": (_("More than 30 days ago"), Q(last_active_day__lt=ago(30))),
            "oldest": (_("More than a year ago"), Q(last_active_day__lt=ago(365))),
            "never": (_("Never"), Q(last_message_at__isnull=True, pk__gt=newest - RECENT_SESSIONS)),
        }


class ScopeFilter(ChoiceFilter):
    """By the kind of the session's scope."""

    title = _("scope")
    parameter_name = "scope_kind"
    conditions: ClassVar = {
        "user": (_("Users"), Q(scope__startswith="user:")),
        "visitor": (_("Visitors"), Q(scope__startswith="visitor:")),
        "server": (_("Server"), Q(scope=SERVER)),
    }


class LengthFilter(ChoiceFilter):
    """By the number of messages, which no index contains: only together with another filter."""

    title = _("length, with another filter")
    parameter_name = "length"
    conditions: ClassVar = {
        "empty": (_("No message"), Q(last_seq__lt=F("first_seq"))),
        "50": (_("More than 50"), Q(last_seq__gte=F("first_seq") + 50)),
        "500": (_("More than 500"), Q(last_seq__gte=F("first_seq") + 500)),
        "5000": (_("More than 5,000"), Q(last_seq__gte=F("first_seq") + 5_000)),
    }

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        super().__init__(request, *args)
        self.is_offered = any(request.GET.get(one.parameter_name) for one in INDEXED)

    def has_output(self) -> bool:
        return self.is_offered

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return super().queryset(request, queryset) if self.is_offered else queryset


INDEXED: Any = (
    StateFilter,
    ProblemFilter,
    ErrorFilter,
    FeedbackFilter,
    ModelFilter,
    TagFilter,
    OwnerFilter,
    ActivityFilter,
    FromFilter,
    UntilFilter,
)
FILTERS: Any = (*INDEXED, MetadataFilter, ScopeFilter, LengthFilter)
