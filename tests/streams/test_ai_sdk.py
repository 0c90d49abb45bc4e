"""The stream of the AI SDK: what a page shows is what is stored, at each end of a turn."""

from __future__ import annotations

import json
import uuid

import pytest
from asgiref.sync import sync_to_async

from chatmemory.models import Message, Session, Turn
from chatmemory.streams.ai_sdk.chunks import TurnChunks
from chatmemory.streams.reads import TurnRows
from chatmemory.streams.turns import Ended, Piece
from chatmemory.streams.watching import Watch
from tests import responders_for_tests
from tests.servers import live_process, person_with_talk, serving, sign_in, use_responder
from tests.streams.front import Front, text_of
from tests.streams.page import shown

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


@pytest.fixture(autouse=True)
def _live(live):
    pass


def types(chunks):
    return [chunk["type"] for chunk in chunks]


async def test_a_reply_is_streamed_and_stored(ann):
    async with serving() as address, Front(address, ann) as page:
        async with page.send("one two three") as stream:
            assert stream.response.headers["x-vercel-ai-ui-message-stream"] == "v1"
            chunks = await stream.rest()
        assert stream.is_done
        assert chunks[0]["type"] == "start"
        assert chunks[0]["messageId"] == "a.c1"
        assert text_of(chunks) == "one two three "
        assert types(chunks)[-2:] == ["finish-step", "finish"]
        assert chunks[-1]["finishReason"] == "stop"
        metadata = chunks[-1]["messageMetadata"]
        assert (metadata["turn"], metadata["userSeq"], metadata["seq"]) == ("c1", 1, 2)
        user, reply = await page.history()
        assert (user["id"], user["parts"][0]["text"]) == ("c1", "one two three")
        assert (reply["id"], reply["metadata"]) == ("a.c1", metadata)
        assert reply["parts"] == [
            {"type": "step-start"},
            {"type": "text", "text": "one two three ", "state": "done"},
        ]


@pytest.mark.slow
async def test_a_stream_is_not_compressed(ann, settings):
    settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]
    async with serving() as address, Front(address, ann) as page:
        async with page.send("one " * 100) as stream:
            assert text_of(await stream.rest()).count("one") == 100
        assert stream.response.headers["Content-Encoding"] == "identity"


@pytest.mark.slow
@pytest.mark.parametrize("new", ["41e0165d-e1f8-4954-8578-bd2561f86015", "GzXzhnNiDhpAuvRR"])
async def test_the_first_message_creates_the_session(ann, new):
    async with serving() as address, Front(address, ann, new) as page:
        async with page.send("hi") as stream:
            assert text_of(await stream.rest()) == "hi "
        [session] = [each async for each in Session.objects.exclude(key="talk")]
        assert session.key == (new if len(new) == 36 else f"ui:{new}")
        assert len(await page.history()) == 2


@pytest.mark.slow
async def test_tools_are_parts_with_their_results(ann, settings):
    use_responder(settings, "with_tools")
    async with serving() as address, Front(address, ann) as page:
        async with page.send("Rain?") as stream:
            chunks = await stream.rest()
        assert types(chunks)[-10:] == [
            "text-end",
            "tool-input-available",
            "tool-output-available",
            "finish-step",
            "start-step",
            "text-start",
            "text-delta",
            "text-end",
            "finish-step",
            "finish",
        ]
        _, reply = await page.history()
        assert [part["type"] for part in reply["parts"]] == [
            "step-start",
            "text",
            "dynamic-tool",
            "step-start",
            "text",
        ]
        assert reply["parts"][2]["output"] == "rain"


@pytest.mark.slow
async def test_the_rows_of_a_step_precede_the_next_text_if_their_notification_is_lost(
    ann, settings, monkeypatch
):
    use_responder(settings, "with_tools_and_pause")
    notify = Watch.notify
    async with serving() as address, Front(address, ann) as page:
        async with page.send("Rain?") as stream:
            await stream.until("start")
            monkeypatch.setattr(Watch, "notify", lambda *_: None)
            chunks = await stream.until("text-delta")
            while chunks[-1]["delta"] != "It rains.":
                chunks += await stream.until("text-delta")
            monkeypatch.setattr(Watch, "notify", notify)
            responders_for_tests.GO.set()
            chunks += await stream.rest()
        assert types(chunks).index("tool-output-available") < types(chunks).index("finish-step")
        assert "reset-step" not in types(chunks)
        assert shown(chunks) == (await page.history())[-1]["parts"]


@pytest.mark.slow
async def test_a_failed_reply_ends_with_its_code(ann, settings):
    use_responder(settings, "failing")
    async with serving() as address, Front(address, ann) as page:
        async with page.send("hi") as stream:
            chunks = await stream.rest()
        assert types(chunks)[-2:] == ["message-metadata", "error"]
        assert json.loads(chunks[-1]["errorText"]) == {"code": "responder_error", "turn": "c1"}
        assert "secret" not in json.dumps(chunks)


@pytest.mark.slow
async def test_stop_keeps_the_text(ann, settings):
    use_responder(settings, "slow")
    async with serving() as address, Front(address, ann) as page:
        async with page.send("hi") as stream:
            await stream.until("text-delta")
            assert (await page.stop())["turn"] == "c1"
            chunks = await stream.rest()
        assert chunks[-1]["finishReason"] == "interrupted"
        row = await Message.stored.aget(seq=2)
        assert (row.text, row.status) == ("So far, ", "interrupted")


async def test_a_page_that_reloads_continues(ann, settings):
    use_responder(settings, "slow")
    async with serving() as address, Front(address, ann) as page:
        async with page.send("hi") as stream:
            await stream.until("text-delta")
        async with page.resume() as stream:
            chunks = await stream.until("text-delta")
            assert (chunks[0]["messageId"], chunks[-1]["delta"]) == ("a.c1", "So far, ")
            responders_for_tests.GO.set()
            assert text_of([*chunks, *await stream.rest()]) == "So far, so good."


@pytest.mark.slow
async def test_a_reply_that_has_just_ended_is_replayed_unless_it_was_seen(ann):
    async with serving() as address, Front(address, ann) as page:
        async with page.send("hi") as stream:
            await stream.rest()
        async with page.resume() as stream:
            assert text_of(await stream.rest()) == "hi "
        async with page.resume(seen="a.c1") as stream:
            assert stream.response.status_code == 204
        await Turn.objects.aupdate(ended_at="2020-01-01T00:00:00Z")
        async with page.resume() as stream:
            assert stream.response.status_code == 204


@pytest.mark.slow
async def test_a_new_chat_and_that_of_another_person_have_nothing_to_resume(ann):
    bob = await sync_to_async(sign_in)()
    async with serving() as address:
        for person, chat in ((ann, str(uuid.uuid4())), (bob, "talk")):
            async with Front(address, person, chat) as page, page.resume() as stream:
                assert stream.response.status_code == 204


@pytest.mark.slow
async def test_a_message_during_a_reply_waits_and_shows_its_place(ann, settings):
    use_responder(settings, "echo_with_pause")
    async with serving() as address, Front(address, ann) as page:
        async with page.send("first!") as first:
            await first.until("text-delta")
            async with page.send("second", "c2") as second:
                queue = (await second.until("data-queue"))[-1]["data"]
                assert (queue["place"], [each["turn"] for each in queue["turns"]]) == (
                    1,
                    ["c1", "c2"],
                )
                waiting = (await page.history())[-1]
                assert (waiting["id"], waiting["metadata"]["status"]) == ("c2", "waiting")
                responders_for_tests.GO.set()
                chunks = await second.rest()
            await first.rest()
        assert text_of(chunks) == "second"
        queues = [chunk["data"]["turns"] for chunk in chunks if chunk["type"] == "data-queue"]
        assert queues[-1] == []
        assert [each["id"] for each in await page.history()] == ["c1", "a.c1", "c2", "a.c2"]


@pytest.mark.slow
async def test_an_edit_and_a_new_reply_keep_the_id_of_the_message(ann):
    async with serving() as address, Front(address, ann) as page:
        for text, more in (
            ("one", {}),
            ("two", {"messageId": "c1", "requestId": "r1"}),
            ("two", {"trigger": "regenerate-message", "requestId": "r2"}),
            ("two", {"trigger": "regenerate-message", "requestId": "r2"}),  # repeated
        ):
            async with page.send(text, **more) as stream:
                chunks = await stream.rest()
                assert text_of(chunks) == f"{text} "
        user, reply = await page.history()
        assert (user["id"], user["parts"][0]["text"]) == ("c1", "two")
        assert reply["id"] == chunks[0]["messageId"]
        assert await Turn.objects.acount() == 3


@pytest.mark.slow
async def test_the_same_id_with_another_text_is_a_conflict(ann):
    async with serving() as address, Front(address, ann) as page:
        async with page.send("hi") as stream:
            await stream.rest()
        async with page.send("hi") as stream:
            assert text_of(await stream.rest()) == "hi "
        async with page.send("ho") as stream:
            assert stream.response.status_code == 409
            assert json.loads(await stream.response.aread())["code"] == "conflict"


@pytest.mark.slow
@pytest.mark.parametrize(("message_id", "request_id"), [("\ud800", "r1"), ("c1", "\ud800")])
async def test_ids_that_cannot_be_stored_are_refused(ann, message_id, request_id):
    async with serving() as address, Front(address, ann) as page:
        async with page.send("hi") as stream:
            await stream.rest()
        message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": "ho"}]}
        version = {"messageId": "c1", "requestId": request_id}
        body = json.dumps({"id": "talk", "messages": [message], **version})
        headers = {"Content-Type": "application/json"}
        answer = await page.http.post("chat", content=body, headers=headers)
        assert answer.status_code == 400, answer.text


async def with_odd_json(messages, session):
    """Reply with a call and a result that are the text of the message."""
    text = messages[-1]["content"]
    call = {"id": "x", "name": "look", "args": text, "type": "invalid_tool_call"}
    yield {"role": "assistant", "content": "", "invalid_tool_calls": [call]}
    yield {"role": "tool", "content": text, "tool_call_id": "x"}
    yield {"role": "assistant", "content": "Done."}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["NaN", "[1e999]", "[" * 5000 + "]" * 5000, '"\\ud800"'])
async def test_calls_whose_json_no_response_can_contain_are_text(ann, settings, text):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.with_odd_json"}
    async with serving() as address, Front(address, ann) as page:
        async with page.send(text) as stream:
            chunks = await stream.rest()
        parts = (await page.history())[-1]["parts"]
        assert shown(chunks) == parts
        assert parts[1]["input"] == text
        [_, message, _] = (await page.http.get("ag?threadId=talk")).json()["messages"]
        assert [part["input"] for part in message["parts"] if "input" in part] == [text]


@pytest.mark.slow
async def test_a_head_request_holds_no_connection(ann):
    async with serving() as address, Front(address, ann) as page:
        for path in ("events/talk", "chat/talk/stream", "ag"):
            assert (await page.http.head(path)).status_code == 405


def test_a_text_without_a_row_is_taken_back():
    chunks = TurnChunks("c1", "a.c1")
    end = TurnRows(
        status="interrupted",
        error="",
        model="",
        usage="",
        user_seq=1,
        rows=[],
        is_complete=True,
        queue=[],
    )
    found = [*chunks.of(Piece(0, "So far, ")), *chunks.of(Ended(end))]
    assert shown(found) == [{"type": "step-start"}]
    assert found[-1]["finishReason"] == "interrupted"
