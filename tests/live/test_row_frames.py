"""Frames of rows are encoded once for all sockets of a session, in bounded memory."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from chatmemory import codec, protocol, services
from chatmemory.live.rows import RowFrames, row_frames
from chatmemory.live.texts import SessionRef
from chatmemory.models import StoredMessage
from tests.factories import make_messages, make_session
from tests.servers import Tab, connected, live_process, sign_in

live = live_process
REF = SessionRef(7, 11)
ROW = StoredMessage(
    seq=1,
    role="user",
    text="hi",
    body=None,
    client_id="c1",
    turn=None,
    step=None,
    status="complete",
    error="",
    model="",
    tokens=1,
    revision=0,
    redacted=False,
    quarantined=False,
    feedback=None,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    turn_client_id=None,
)


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """The seqs of the rows that are encoded."""
    seqs: list[int] = []
    dump = protocol.dump_message

    def counted(fields):
        seqs.append(fields["seq"])
        return dump(fields)

    monkeypatch.setattr(protocol, "dump_message", counted)
    return seqs


@pytest.mark.slow
def test_a_frame_with_the_most_steps_is_small():
    call = {
        "id": "\U0001f600" * 200,
        "name": "\U0001f600" * 200,
        "args": {"text": "\U0001f600" * 9_000},
    }
    message = {"role": "assistant", "content": "", "tool_calls": [call] * 1_000}
    reasoning = {"additional_kwargs": {"reasoning_content": "\U0001f600" * 9_000}}
    row = codec.encode({**message, **reasoning}, lenient=True)
    frame = protocol.dump_message(replace(ROW, role=row.role, text="", body=row.body).public())
    assert len(frame.encode()) < protocol.MAX_FRAME_OUT / 3


def test_an_equal_row_is_encoded_once(encoded):
    frames = RowFrames()
    assert frames.frame_of(REF, ROW) == frames.frame_of(REF, replace(ROW))
    assert encoded == [1]


@pytest.mark.parametrize(
    "other",
    [
        {"seq": 2},
        {"revision": 1},
        {"created_at": ROW.created_at + timedelta(microseconds=1)},
        {"role": "assistant"},
        {"client_id": "c2"},
    ],
)
def test_another_version_or_another_row_is_encoded_itself(encoded, other):
    """A restored database may assign the numbers of a row again."""
    frames = RowFrames()
    row = replace(ROW, text="other", **other)
    frames.frame_of(REF, ROW)
    assert "other" in frames.frame_of(REF, row)
    assert "hi" in frames.frame_of(REF, ROW)
    assert len(encoded) == 2


@pytest.mark.parametrize("ref", [SessionRef(8, 11), SessionRef(7, 12)])
def test_a_row_of_another_session_or_epoch_is_encoded_itself(encoded, ref):
    frames = RowFrames()
    frames.frame_of(REF, ROW)
    assert "other" in frames.frame_of(ref, replace(ROW, text="other"))


def test_the_memory_is_bounded_and_the_last_used_frames_stay(encoded):
    frames = RowFrames(max_bytes=10_000)
    for number in range(100):
        frames.frame_of(REF, ROW)
        frames.frame_of(REF, replace(ROW, seq=2 + number, text="x" * 1_000))
        kept = sum(sys.getsizeof(frame) for frame in frames._frames.values())
        assert frames.size == kept <= 10_000
    assert encoded.count(1) == 1
    assert len(frames._frames) > 2
    assert len(frames.frame_of(REF, replace(ROW, text="x" * 20_000, seq=200))) > 20_000
    assert frames.size <= 10_000


@pytest.mark.django_db(transaction=True)
async def test_several_sockets_of_a_session_encode_a_row_once_and_a_single_one_keeps_none(
    live, ann, encoded
):
    row_frames._frames.clear()
    async with connected(first := Tab(ann)):
        assert len(row_frames._frames) == 0
        async with connected(second := Tab(ann), third := Tab(ann)):
            encoded.clear()
            await services.aappend_messages(**ann.talk, messages=make_messages("three", "four"))
            for tab in (first, second, third):
                await tab.until("message", seq=4)
    assert encoded == [3, 4]


@pytest.fixture
def ann(live):
    person = sign_in()
    make_session(owner=person.user)
    services.append_messages(**person.talk, messages=make_messages("one", "two"))
    return person
