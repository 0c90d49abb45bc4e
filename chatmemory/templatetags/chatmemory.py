"""`{% load chatmemory %}{% chatmemory_widget session_key=… %}` puts the chat into a page."""

from __future__ import annotations

from django import template
from django.conf import settings
from django.forms.utils import flatatt
from django.template import Context
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from chatmemory import codec
from chatmemory.pages.views import SOCKET_PATH

register = template.Library()


@register.simple_tag(takes_context=True)
def chatmemory_widget(context: Context, *, session_key: object, **attributes: object) -> SafeString:
    """Return the script and the element for a session of the page's user.

    The attributes are those of docs/widget.md, with underscores: `mode="button"`. Without the chat
    pages, stored replies remain plain text. Raises NotFound for a key that no URL can contain.
    """
    key = codec.key_of_address(str(session_key))
    user = getattr(context.get("request"), "user", None)
    given = {name.replace("_", "-"): value for name, value in attributes.items()}
    element = {
        "url": f"{SOCKET_PATH}{key}/",
        "page": _page_of(key),
        "person": getattr(user, "pk", None),
        "create": codec.is_new_key(key),
        "details": settings.DEBUG or bool(getattr(user, "is_staff", False)),
        **given,
    }
    return format_html(
        '<script type="module" src="{}"></script>\n<chat-memory{}></chat-memory>',
        static("chatmemory/chat.js"),
        flatatt({name: value for name, value in element.items() if value is not None}),
    )


def _page_of(key: str) -> str | None:
    """Return the address of the session's page, if the chat pages are mounted."""
    try:
        return reverse("chatmemory:session", args=[key])
    except NoReverseMatch:
        return None
