"""Issue a ticket to a member, use it, and deactivate the member. Runs as a separate module."""

from __future__ import annotations

from typing import Any

import django

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db.models.functions import Now  # noqa: E402
from django.test import Client  # noqa: E402

from chatmemory import services  # noqa: E402
from chatmemory.access import logins  # noqa: E402
from chatmemory.errors import Unauthenticated  # noqa: E402

Member: Any = get_user_model()
call_command("migrate", run_syncdb=True, verbosity=0)
ann = Member.objects.create(name="ann")
browser = Client()
browser.force_login(ann)


def ticket():
    answer = browser.post("/api/tickets/", {}, content_type="application/json")
    assert answer.status_code == 201, answer.content
    return answer.json()["ticket"]


def is_refused(check):
    try:
        check()
    except Unauthenticated:
        return True
    return False


assert browser.get("/chat/~all/").status_code == 200
assert browser.get("/api/sessions/").status_code == 200
assert browser.session.session_key
assert logins.login_of_session(browser.session.session_key).actor.label == "ann"
login, unused = services.use_ticket(ticket=ticket()), ticket()
logins.check_login(login)
Member.objects.update(left_at=Now())
assert is_refused(lambda: logins.check_login(login))
assert is_refused(lambda: services.use_ticket(ticket=unused))
assert is_refused(lambda: services.issue_ticket(by=login.actor))
print("done")  # noqa: T201  # for the test that runs this
