"""The URLs of signing in and out: Django's views with templates of this package.

For a project without own pages for this. Under the prefix `accounts/`, Django's default LOGIN_URL
leads there.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse

from chatmemory.csp import with_policy


class SignIn(LoginView):
    """After the login, without a requested page, it leads to the list of chats.

    A project's own LOGIN_REDIRECT_URL takes precedence.
    """

    template_name = "chatmemory/sign_in.html"

    def get_default_redirect_url(self) -> str:
        if settings.is_overridden("LOGIN_REDIRECT_URL"):  # type: ignore[misc]  # not in the stubs
            return super().get_default_redirect_url()
        return reverse("chatmemory:chat")


class SignOut(LogoutView):
    """Ends the login and removes what the browser keeps for this site: drafts, read positions."""

    template_name = "chatmemory/signed_out.html"

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = super().post(request, *args, **kwargs)
        response["Clear-Site-Data"] = '"storage"'
        return response


sign_in = SignIn.as_view()
sign_out = SignOut.as_view()

# Without a namespace: projects and Django's own pages know these names.
urlpatterns = [
    path("login/", with_policy(sign_in), name="login"),
    path("logout/", with_policy(sign_out), name="logout"),
]
