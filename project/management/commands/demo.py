"""Start the demo: migrate, create users and example data, and serve until Ctrl-C."""

from __future__ import annotations

import os
import socket
from argparse import ArgumentParser
from contextlib import suppress

from channels.routing import get_default_application
from daphne.server import Server
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.core.management import BaseCommand, CommandError, call_command
from django.urls import reverse
from django.utils.crypto import salted_hmac

from chatmemory import services
from chatmemory.errors import Archived, Conflict, HistoryCleared
from project.demo_data.example_data import is_made, make_example_data
from project.demo_dialogues import DIALOGUES
from project.demo_models import model_hint

HOST = "127.0.0.1"
PORTS = 100
"""Number of ports to try, starting at --port."""


class Command(BaseCommand):
    """The command behind `make demo`."""

    help = __doc__
    requires_system_checks = ()
    """They would import the application as one that does not serve; `handle` runs them later."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--port", type=int, default=8000, help="first port to try; default: %(default)d"
        )

    def handle(self, *, port: int, **options: object) -> None:
        if not settings.DEBUG:
            raise CommandError("The demo sets known passwords, so it requires DEBUG=1.")
        call_command("migrate", interactive=False, verbosity=0)
        user, password = set_up_user()
        operator, operator_password = set_up_operator()
        if not is_made():
            self.stdout.write(
                "Making the example data of the admin. This takes some seconds, once."
            )
            self.stdout.flush()
            make_example_data(User.objects.get(username=operator.username))
        seed(user)
        with listen(port) as listener:
            # Not before `migrate`: two seconds after its import the application sweeps the tables.
            application = get_default_application()
            self.check()
            _, bound = listener.getsockname()
            if bound != port:
                self.stdout.write(f"Port {port} is in use; using {bound}.")
            address = f"http://{HOST}:{bound}"
            self.stdout.write(
                f"\n  Start  {address}{reverse('home')}\n"
                "         try the chat, without an account\n\n"
                f"  Chat   {address}{reverse('chatmemory:chat')}\n"
                f"         user {user}, password {password}\n"
                "         or in a terminal: .venv/bin/python manage.py chatmemory_chat "
                f"{address}/ws/chat/ --user {user}\n\n"
                f"  Shop   {address}{reverse('shop')}\n"
                "         a page with the widget, for visitors\n\n"
                f"  Admin  {address}{reverse('admin:index')}\n"
                f"         user {operator}, password {operator_password}\n\n"
                "Ctrl-C ends the demo.\n"
            )
            hint = model_hint(os.environ)
            if hint and settings.RESPONDER == settings.DEMO_BOT:
                self.stdout.write(f"{hint}\n")
            self.stdout.flush()  # a pipe would buffer it
            Server(application, endpoints=[f"fd:fileno={listener.fileno()}"]).run()


def set_up_user() -> tuple[User, str]:
    """Create or reset the chat user; return the user and the password."""
    return _with_password("mira", is_staff=False)


def set_up_operator() -> tuple[User, str]:
    """Create or reset the operator, with all permissions of the app; return user and password."""
    operator, password = _with_password("operator", is_staff=True)
    operator.user_permissions.set(
        Permission.objects.filter(content_type__app_label__startswith="chatmemory")
    )
    return operator, password


def _with_password(username: str, *, is_staff: bool) -> tuple[User, str]:
    # Derived from the secret key, so that a restart does not log the user out.
    password = salted_hmac("project.demo", username, algorithm="sha256").hexdigest()[:12]
    user, _ = User.objects.get_or_create(username=username)
    user.is_staff, user.is_active = is_staff, True
    if not user.check_password(password):
        user.set_password(password)
    user.save()
    return user, password


def seed(user: User) -> None:
    """Store the example sessions; later changes to them are kept."""
    by, scope = services.Actor.server("demo"), services.user_scope(user)
    for dialogue in DIALOGUES:
        services.open_session(session_key=dialogue.key, title=dialogue.title, by=by, scope=scope)
        with suppress(Archived, Conflict, HistoryCleared):
            services.append_messages(
                session_key=dialogue.key,
                messages=dialogue.messages(),
                client_id=dialogue.key,
                by=by,
                scope=scope,
            )


def listen(port: int) -> socket.socket:
    """Listen on the first free port. Raises CommandError after PORTS attempts."""
    for candidate in range(port, port + PORTS):
        with suppress(OSError):
            return socket.create_server((HOST, candidate))
    raise CommandError(f"All ports from {port} to {port + PORTS - 1} are in use.")
