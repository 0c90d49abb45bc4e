"""The list of threads in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatmemory.access.actors import is_person
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sections import Section, register_section
from chatmemory.admin.text import grouped, visible
from chatmemory.langgraph.models import Checkpoint, Thread

PAGE = "chatmemory_langgraph_thread_changelist"
SECTION = Section(label=gettext_lazy("Threads"), page=PAGE, model=Thread)
register_section(SECTION)


@admin.register(Thread)
class ThreadAdmin(ReadOnlyAdmin):
    """Lists the threads of all conversations and people, without their contents."""

    view_codename = "view_thread"
    section = SECTION
    list_display = ("name", "belongs_to", "checkpoints", "last_active_day")
    list_display_links = None
    ordering = ("-pk",)
    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any, Any]:
        # By a subquery for each row of the page: a join would count those of all threads.
        of_thread = Checkpoint.objects.filter(thread=OuterRef("pk")).order_by().values("thread")
        count = Subquery(of_thread.annotate(count=Count("pk")).values("count"))
        stored = Thread.objects.exclude(Q(session=None, scope=""))
        counted: QuerySet[Any, Any] = stored.annotate(count=Coalesce(count, 0))
        return counted

    def get_urls(self) -> list[URLPattern]:
        return [path("", self.admin_site.admin_view(self.changelist_view), name=PAGE)]

    @admin.display(description=gettext_lazy("thread"))
    def name(self, thread: Thread) -> str:
        return visible(thread.thread_id)

    @admin.display(description=gettext_lazy("belongs to"))
    def belongs_to(self, thread: Thread) -> str:
        """Link to the page of the person or the conversation."""
        if thread.session_id is not None:
            label = _("conversation %(pk)s") % {"pk": thread.session_id}
            return _link(self.url_of("session_change", thread.session_id), label)
        if is_person(thread.scope):
            address = f"{self.url_of('session_person')}?{urlencode({'scope': thread.scope})}"
            return _link(address, visible(thread.scope))
        return visible(thread.scope)

    @admin.display(description=gettext_lazy("checkpoints"))
    def checkpoints(self, thread: Thread) -> str:
        return grouped(thread.count)  # type: ignore[attr-defined]  # of the queryset


def _link(address: str, label: str) -> str:
    return format_html('<a href="{}">{}</a>', address, label)
