"""Read and stop turns over REST."""

from __future__ import annotations

import pytest

from chatmemory import services
from chatmemory.models import Turn
from chatmemory.services import Actor
from chatmemory.services.turns import claims, progress
from tests.api.calls import MESSAGES, TALK, post, problem, send

pytestmark = pytest.mark.django_db

TURNS = f"{TALK}turns/"
STOP = f"{TALK}stop/"


@pytest.fixture
def admit(ann, talk):
    """Return a function that admits a turn of Ann's session."""

    def admit_turn(client_id, **fields):
        where = {"session_key": "talk", "by": Actor.user(ann)}
        content = f"text of {client_id}"
        return services.admit_turn(**where, client_id=client_id, content=content, **fields)

    return admit_turn


def turns_of(api):
    return [(turn["turn"], turn["status"], turn["text"]) for turn in api.get(TURNS).json()["turns"]]


def test_the_running_turn_is_listed_before_the_waiting_ones(api, admit):
    assert turns_of(api) == []
    admit("c1", owner="another")
    admit("c2")
    admit("c3")
    assert turns_of(api) == [
        ("c1", "running", "text of c1"),
        ("c2", "waiting", "text of c2"),
        ("c3", "waiting", "text of c3"),
    ]
    admitted = Turn.objects.get(client_id="c2").created_at
    assert api.get(TURNS).json()["turns"][1]["since"] == admitted.isoformat()


def test_a_requeued_turn_is_listed_first(api, admit):
    admit("c1", owner="another")
    admit("c2")
    Turn.objects.filter(client_id="c1").update(status="waiting", position=5)
    assert turns_of(api) == [
        ("c1", "waiting", "text of c1"),
        ("c2", "waiting", "text of c2"),
    ]


def test_a_turn_shows_how_it_ended(api, talk):
    sent = send(api, wait=True).json()
    assert (sent["status"], sent["seq"]) == ("complete", 3)
    shown = api.get(f"{TURNS}c1/").json()
    turn = Turn.objects.get()
    assert shown == {
        "turn": "c1",
        "status": "complete",
        "seqs": [3, 4],
        "error": "",
        "model": turn.model,
        "usage": shown["usage"],
    }
    assert turns_of(api) == []


def test_the_rows_of_a_turn_end_before_the_next_turn(api, talk):
    send(api, wait=True)
    send(api, client_id="c2", wait=True)
    shown = [api.get(f"{TURNS}{turn}/").json()["seqs"] for turn in ("c1", "c2")]
    assert shown == [[3, 4], [5, 6]]


def test_a_turn_shows_the_usage_of_its_model(api, admit):
    claim = admit("c1", owner="another").claim
    progress.start_turn(claim=claim)
    progress.finish_turn(
        claim=claim,
        status="complete",
        message={"role": "assistant", "content": "hello"},
        model="gpt",
        usage={"input_tokens": 3, "output_tokens": 4},
    )
    shown = api.get(f"{TURNS}c1/").json()
    assert (shown["model"], shown["usage"]) == ("gpt", {"input_tokens": 3, "output_tokens": 4})


def test_a_turn_without_a_row_or_with_hidden_rows_has_no_seqs(api, ann, admit):
    admit("c1")
    assert api.get(f"{TURNS}c1/").json()["seqs"] is None
    assert claims.claim_next(session_pk=Turn.objects.get().session_id, owner="another")
    assert api.get(f"{TURNS}c1/").json()["seqs"] == [3, 3]
    services.clear_session(session_key="talk", by=Actor.user(ann), reason="")
    shown = api.get(f"{TURNS}c1/").json()
    assert (shown["status"], shown["seqs"]) == ("interrupted", None)


def test_an_unknown_turn_is_not_found(api, admit):
    admit("c1")
    for name in ("c2", "c" * 300, "%00", "\N{HONEYBEE}"):
        assert problem(api.get(f"{TURNS}{name}/"))[:2] == (404, "unknown_turn")


def test_a_stop_ends_the_running_turn_or_the_named_one(api, admit):
    assert post(api, STOP, {}).json() == {"turn": None, "status": None}
    admit("c1", owner="another")
    admit("c2")
    assert post(api, STOP, {}).json() == {"turn": "c1", "status": "running"}
    assert Turn.objects.get(client_id="c1").stop_requested_at is not None
    for _ in range(2):
        answer = post(api, STOP, {"turn": "c2"})
        assert (answer.status_code, answer.json()) == (200, {"turn": "c2", "status": "cancelled"})


def test_a_stop_changes_no_ended_turn(api, talk):
    send(api, wait=True)
    assert post(api, STOP, {"turn": "c1"}).json() == {"turn": "c1", "status": "complete"}
    assert post(api, STOP, {}).json() == {"turn": None, "status": None}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"turn": "other"}, (404, "unknown_turn", None)),
        ({"turn": ""}, (400, "bad_field", "turn")),
        ({"turn": 5}, (400, "bad_field", "turn")),
        ({"turn": "a b"}, (400, "bad_field", "turn")),
        ({"id": 1}, (400, "unknown_field", "id")),
        ([], (400, "bad_shape", None)),
        (b"{", (400, "bad_json", None)),
    ],
)
def test_a_bad_stop_stops_nothing(api, admit, body, expected):
    admit("c1", owner="another")
    assert problem(post(api, STOP, body)) == expected
    assert Turn.objects.get().stop_requested_at is None


def test_the_turns_of_one_session_are_not_found_in_another(api, ann, admit):
    admit("c1", owner="another")
    services.open_session(session_key="other", by=Actor.user(ann))
    other = "/api/sessions/other/"
    assert problem(api.get(f"{other}turns/c1/"))[:2] == (404, "unknown_turn")
    assert problem(post(api, f"{other}stop/", {"turn": "c1"}))[:2] == (404, "unknown_turn")
    assert api.get(MESSAGES).json()["messages"]
