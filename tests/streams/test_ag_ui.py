"""AG-UI: what a page shows is what is stored, at each end of a run."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from functools import partial

import pytest
from asgiref.sync import sync_to_async

from chatmemory import services
from chatmemory.live.texts import SessionRef
from chatmemory.models import Session, Turn
from chatmemory.services import clear_session, trim_session
from chatmemory.streams.ag_ui.events import TurnEvents
from chatmemory.streams.ag_ui.messages import messages_of
from chatmemory.streams.ag_ui.runs import active_turn
from chatmemory.streams.ag_ui.sse import RunStream
from chatmemory.streams.reads import TurnRows, read_turns
from chatmemory.streams.turns import Ended, Piece
from chatmemory.streams.watching import StreamClosed
from tests import responders_for_tests
from tests.factories import make_user
from tests.servers import live_process, person_with_talk, serving, sign_in, use_responder
from tests.streams.ag_ui_page import Agent, Page
from tests.streams.front import Stream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ann = person_with_talk
live = live_process

TURNS = 12
"""How many random turns are run."""


@pytest.fixture(autouse=True)
def _live(live):
    pass


def user(text: str, name: str = "c1"):
    return {"id": name, "role": "user", "content": text}


def types(events):
    return [event["type"] for event in events]


async def stored(ann, key: str = "talk"):
    """Return the stored messages as those of AG-UI."""
    talk = {**ann.talk, "session_key": key}
    return messages_of(await sync_to_async(read_turns)(**talk, before=None, limit=1000))


async def code_of(stream: Stream) -> str:
    return str(json.loads(await stream.response.aread())["code"])


async def test_a_reply_is_streamed_and_stored(ann):
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("one two three") as stream:
            assert stream.response.headers["content-type"] == "text/event-stream"
            events = await stream.rest()
        assert events[0] == {"type": "RUN_STARTED", "threadId": "talk", "runId": "run-1"}
        assert types(events)[1:3] == ["STEP_STARTED", "TEXT_MESSAGE_START"]
        assert types(events)[-4:] == [
            "TEXT_MESSAGE_END",
            "STEP_FINISHED",
            "CUSTOM",
            "RUN_FINISHED",
        ]
        assert "outcome" not in events[-1]
        page = Page(user("one two three")).read(events)
        assert page.text == "one two three "
        assert page.messages == await stored(ann)
        [turn] = page.of("turn")
        assert (turn["status"], turn["userSeq"], turn["seq"]) == ("complete", 1, 2)


@pytest.mark.parametrize(
    "new", ["41e0165d-e1f8-4954-8578-bd2561f86015", "thread-1764328969000-k3j9x2a"]
)
async def test_the_first_message_creates_the_session(ann, new):
    async with serving() as address, Agent(address, ann, new) as agent:
        assert (await agent.thread())["messages"] == []
        async with agent.run([{"type": "text", "text": "hi"}]) as stream:
            assert Page().read(await stream.rest()).text == "hi "
        [session] = [each async for each in Session.objects.exclude(key="talk")]
        assert session.key == (new if len(new) == 36 else f"ui:{new}")
        assert len((await agent.thread())["messages"]) == 2


async def test_tools_are_calls_with_their_results(ann, settings):
    use_responder(settings, "with_tools")
    async with serving() as address, Agent(address, ann) as agent:
        page = Page()
        for number in ("1", "2"):  # both replies have a call with the same id
            page.messages.append(user("Rain?", number))
            async with agent.run("Rain?", number, f"run-{number}") as stream:
                page = Page(*page.messages).read(await stream.rest())
        assert [each["role"] for each in page.messages[:4]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        [call] = page.messages[1]["toolCalls"]
        assert call["function"] == {"name": "weather", "arguments": "{}"}
        assert page.messages[2]["toolCallId"] == call["id"]
        assert page.snapshots == 0
        assert page.messages == await stored(ann)


async def test_a_failed_reply_ends_with_its_code(ann, settings):
    use_responder(settings, "failing")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi") as stream:
            events = await stream.rest()
        page = Page(user("hi")).read(events)
        assert page.end == {
            "type": "RUN_ERROR",
            "message": "The reply failed (responder_error).",
            "code": "responder_error",
        }
        assert "TEXT_MESSAGE_END" in types(events)
        assert page.messages == await stored(ann)
        assert "secret" not in json.dumps(events)


@pytest.mark.parametrize("version", [None, "1.0"])
async def test_stop_keeps_the_text(ann, settings, version):
    use_responder(settings, "slow")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi", protocolVersion=version) as stream:
            events = await stream.until("TEXT_MESSAGE_CONTENT")
            await agent.stop()
            events += await stream.rest()
        page = Page(user("hi")).read(events)
        assert page.end is not None
        assert page.end.get("outcome") == (version and {"type": "cancelled"})
        assert page.of("turn")[0]["status"] == "interrupted"
        assert page.messages == await stored(ann)
        assert page.text == "So far, "


async def test_progress_is_an_event_without_text(ann, settings):
    use_responder(settings, "with_progress")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi") as stream:
            events = await stream.until("CUSTOM")
            responders_for_tests.GO.set()
            page = Page(user("hi")).read([*events, *await stream.rest()])
        assert page.of("progress")
        assert page.messages == await stored(ann)


async def test_a_question_is_shown(ann, settings):
    use_responder(settings, "asking_and_continuing")
    responders_for_tests.GO.set()
    async with serving() as address, Agent(address, ann) as agent, agent.run("hi") as stream:
        assert Page().read(await stream.rest()).of("asks") == [{"value": "Sure?"}]


async def test_a_stored_text_replaces_another_one_that_was_streamed(ann, settings):
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("first") as stream:
            await stream.rest()
        use_responder(settings, "other_final_text")
        page = Page(*await stored(ann), user("hi", "c2"))
        async with agent.run("hi", "c2", "run-2") as stream:
            events = await stream.until("TEXT_MESSAGE_CONTENT")
            assert Page(*page.messages).read(events).text != page.text
            responders_for_tests.GO.set()
            events += await stream.rest()
        page.read(events)
        assert types(events)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        assert page.messages == await stored(ann)
        assert page.messages[-1]["content"] == "Sorry, no."
        assert [each["id"] for each in page.messages][::2] == ["c1", "c2"]


def ended(status: str = "complete", usage: str = "") -> Ended:
    """Return the end of the turn of the first message."""
    turn = TurnRows(
        status=status,
        error="",
        model="model-1" if usage else "",
        usage=usage,
        user_seq=1,
        rows=[],
        is_complete=True,
        queue=[],
    )
    return Ended(turn)


@pytest.mark.parametrize("status", ["complete", "interrupted", "failed"])
def test_a_text_without_a_row_ends_and_is_wrong(status):
    end = ended(status)
    events = TurnEvents("c1", "talk", "run-1")
    found = [*events.of(Piece(0, "So far, ")), *events.of(end), events.finish(end.turn)]
    assert events.is_wrong
    assert Page().read(found).end == found[-1]
    assert "TEXT_MESSAGE_END" in types(found)


USAGE = {
    "input_tokens": 20,
    "output_tokens": 8,
    "total_tokens": 28,
    "input_token_details": {"cache_read": 4, "cache_creation": 0, "audio": 1},
    "output_token_details": {"reasoning": 5},
}
TOKENS = {
    "model": "model-1",
    "inputTokens": 20,
    "outputTokens": 8,
    "totalTokens": 28,
    "cachedInputTokens": 4,
    "cacheWriteInputTokens": 0,
    "reasoningTokens": 5,
}


@pytest.mark.parametrize("status", ["complete", "interrupted", "failed"])
def test_the_end_of_a_run_has_its_usage(status):
    """As `tokenUsageFromLangChainMetadata` of `@ag-ui/core` 1.0.0 counts it."""
    end = ended(status, json.dumps(USAGE)).turn
    assert TurnEvents("c1", "talk", "run-1").finish(end)["usage"] == [TOKENS]


@pytest.mark.parametrize(
    "usage",
    [
        "",
        "{}",
        "[1]",
        "{",
        '{"input_tokens": "5", "output_tokens": true, "total_tokens": -1}',
        '{"input_tokens": 9007199254740992, "input_token_details": [4]}',
        '{"output_tokens": 1.5, "output_token_details": {"reasoning": NaN}}',
    ],
    ids=["none", "empty", "a list", "broken", "no numbers", "too large", "no whole numbers"],
)
def test_a_usage_without_valid_counts_is_left_out(usage):
    assert "usage" not in TurnEvents("c1", "talk", "run-1").finish(ended(usage=usage).turn)


async def test_a_snapshot_has_no_later_reply(ann):
    async with serving() as address, Agent(address, ann) as agent:
        for name in ("c1", "c2"):
            async with agent.run("hi", name) as stream:
                await stream.rest()
    read = partial(sync_to_async(read_turns), **ann.talk, before=None, limit=100)
    run = RunStream(TurnEvents("c1", "talk", "run-1"), (await read()).ref, read)
    await run.of(Piece(0, "So far, "))
    last = (await run.of(ended())).split("data: ")[-2:]
    snapshot, end = map(json.loads, last)
    assert end["type"] == "RUN_FINISHED"
    assert [each["role"] for each in snapshot["messages"]] == ["user", "assistant", "user"]


async def test_a_stream_of_a_removed_session_breaks_at_its_snapshot(ann):
    read = partial(sync_to_async(read_turns), **{**ann.talk, "session_key": "removed"})
    events = TurnEvents("c1", "talk", "run-1")
    run = RunStream(events, SessionRef(1, 1), partial(read, before=None, limit=100))
    await run.of(Piece(0, "So far, "))
    with pytest.raises(StreamClosed):
        await run.of(ended())


async def test_a_snapshot_has_no_message_of_a_new_session_under_the_key(ann):
    session = await services.aget_session(**ann.talk)
    read = partial(sync_to_async(read_turns), **ann.talk)
    events = TurnEvents("c1", "talk", "run-1")
    ref = SessionRef(session.pk, session.epoch)
    run = RunStream(events, ref, partial(read, before=None, limit=100))
    await run.of(Piece(0, "So far, "))
    await sync_to_async(services.purge_session)(**ann.talk, reason="test")
    await services.aopen_session(**ann.talk)
    with pytest.raises(StreamClosed):
        await run.of(ended())


async def test_a_snapshot_has_the_messages_that_wait(ann, settings):
    use_responder(settings, "other_final_text")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("one") as first:
            await first.until("TEXT_MESSAGE_CONTENT")
            async with agent.run("two", "c2", "run-2") as second:
                queue = (await second.until("CUSTOM"))[-1]
                assert (queue["name"], queue["value"]["place"]) == ("queue", 1)
                responders_for_tests.GO.set()
                snapshot = (await first.until("MESSAGES_SNAPSHOT"))[-1]["messages"]
                later = Page(*snapshot).read([{"type": "RUN_STARTED"}, *await second.rest()])
        assert [each["id"] for each in snapshot if each["role"] == "user"] == ["c1", "c2"]
        assert [each["content"] for each in snapshot if each["role"] != "user"] == ["Sorry, no."]
        assert later.of("queue")[-1] == {"place": 0, "turns": []}
        assert later.messages == await stored(ann)


async def test_tools_of_the_page_are_refused(ann):
    tools = [{"name": "weather", "description": "", "parameters": {}}]
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi", tools=tools) as stream:
            assert stream.response.status_code == 400
            problem = json.loads(await stream.response.aread())
        assert (problem["code"], problem["field"]) == ("bad_field", "tools")
        assert await Turn.objects.acount() == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"threadId": "a b"}, "threadId"),
        ({"runId": None}, "runId"),
        ({"runId": ""}, "runId"),
        ({"runId": "a\nb"}, "runId"),
        ({"messages": []}, "messages"),
        ({"messages": [{"id": "c1", "role": "tool", "content": "rain"}]}, "messages"),
        ({"messages": [{"id": "c" * 47, "role": "user", "content": "hi"}]}, "messages"),
        ({"messages": [{"id": "c1", "role": "user", "content": [{"type": "image"}]}]}, "parts"),
    ],
)
async def test_bad_bodies_are_refused_with_their_field(ann, body, field):
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi", **body) as stream:
            assert stream.response.status_code == 400
            problem = json.loads(await stream.response.aread())
        assert problem["field"] == field
        if "c" * 47 in json.dumps(body):
            assert problem["limit"] == 46
        assert await Turn.objects.acount() == 0


async def test_a_repeated_run_attaches_to_its_turn(ann, settings):
    use_responder(settings, "slow")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi") as stream:
            await stream.until("TEXT_MESSAGE_CONTENT")
            async with agent.run("hi") as again:
                events = await again.until("TEXT_MESSAGE_CONTENT")
                responders_for_tests.GO.set()
                page = Page(user("hi")).read([*events, *await again.rest()])
        assert page.messages == await stored(ann)
        async with agent.run("hi") as stream:  # after the end, too
            assert Page(user("hi")).read(await stream.rest()).messages == page.messages
        async with agent.run("ho") as stream:
            assert stream.response.status_code == 409
            assert await code_of(stream) == "conflict"
        assert await Turn.objects.acount() == 1


async def test_another_run_of_a_stored_message_is_a_new_version(ann):
    async with serving() as address, Agent(address, ann) as agent:
        for run, text in (
            ("run-1", "one"),
            ("run-2", "one"),  # another reply
            ("run-2", "one"),  # repeated
            ("run-3", "two"),  # an edit
            ("run-1", "one"),  # a late one, of the first version
        ):
            async with agent.run(text, run=run) as stream:
                assert Page(user(text)).read(await stream.rest()).text == f"{text} "
        assert await Turn.objects.acount() == 3
        assert [each["content"] for each in await stored(ann)] == ["two", "two "]
        assert (await stored(ann))[0]["id"] == "c1"


async def test_a_run_of_a_message_of_another_client_is_a_new_version(ann):
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.send("one") as stream:
            await stream.rest()
        async with agent.run("two") as stream:
            await stream.rest()
        assert [each["content"] for each in await stored(ann)] == ["two", "two "]


async def test_another_id_that_begins_alike_is_another_message(ann):
    async with serving() as address, Agent(address, ann) as agent:
        for name in ("c1:r1", "c1:r", "c1", "c"):
            async with agent.run("hi", name) as stream:
                await stream.rest()
        assert [each["id"] for each in await stored(ann)][::2] == ["c1:r1", "c1:r", "c1", "c"]


async def test_another_run_of_a_waiting_message_attaches_to_its_turn(ann, settings):
    use_responder(settings, "echo_with_pause")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("first!") as first:
            await first.until("TEXT_MESSAGE_CONTENT")
            async with agent.run("second", "c2", "run-2") as second:
                await second.until("CUSTOM")
            async with agent.run("second", "c2", "run-3") as second:
                await second.until("CUSTOM")
                responders_for_tests.GO.set()
                assert Page().read([*await second.rest()]).text == "second"
        assert await Turn.objects.acount() == 2


async def test_a_run_is_streamed_again_while_it_runs_and_for_a_minute(ann, settings):
    use_responder(settings, "slow")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi") as stream:
            await stream.until("TEXT_MESSAGE_CONTENT")
        async with agent.join(runId="run-1", offset="-1") as stream:
            events = await stream.until("TEXT_MESSAGE_CONTENT")
            assert events[0] == {"type": "RUN_STARTED", "threadId": "talk", "runId": "run-1"}
            assert events[-1]["delta"] == "So far, "
            responders_for_tests.GO.set()
            page = Page(user("hi")).read([*events, *await stream.rest()])
        assert page.messages == await stored(ann)
        for query in ({}, {"threadId": "talk"}):
            async with agent.join(runId="run-1", offset="-1", **query) as stream:
                assert Page(user("hi")).read(await stream.rest()).messages == page.messages
        for query in ({"runId": "run-2"}, {"runId": "run-1", "threadId": "other"}):
            async with agent.join(**query) as stream:
                assert stream.response.status_code == 404
        await Turn.objects.aupdate(ended_at="2020-01-01T00:00:00Z")
        async with agent.join(runId="run-1", offset="-1") as stream:
            assert stream.response.status_code == 404


async def test_a_version_is_found_by_its_run(ann):
    async with serving() as address, Agent(address, ann) as agent:
        for run in ("run-1", "run-2"):
            async with agent.run("hi", run=run) as stream:
                await stream.rest()
        async with agent.join(runId="run-2") as stream:
            page = Page(user("hi")).read(await stream.rest())
        assert page.messages == await stored(ann)


async def test_the_server_names_runs_by_turn_and_session(ann):
    async with serving() as address, Agent(address, ann) as agent:
        for agent.chat in ("talk", "new"):
            async with agent.send(f"hi {agent.chat}") as stream:
                await stream.rest()
        for run, thread in (("c1@talk", "talk"), ("c1@ui:new", "new")):
            async with agent.join(runId=run) as stream:
                events = await stream.rest()
            assert events[0]["threadId"] == thread
            assert Page().read(events).text == f"hi {thread} "


@pytest.mark.parametrize("run", ["ann@example.com", "c2@talk", "@", "run-1@"])
async def test_a_run_whose_id_looks_like_one_of_the_server_is_streamed_again(ann, run):
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("two", "c2", "run-2") as stream:
            await stream.rest()
        async with agent.run("one", "c1", run) as stream:
            events = await stream.rest()
        async with agent.join(runId=run) as stream:
            assert await stream.rest() == events


@pytest.mark.parametrize("remove", [clear_session, partial(trim_session, keep_last=0)])
async def test_a_run_of_removed_messages_is_not_found(ann, remove):
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi") as stream:
            await stream.rest()
        await sync_to_async(remove)(**ann.talk, reason="test")
        async with agent.join(runId="run-1") as stream:
            assert stream.response.status_code == 404


async def test_a_turn_that_begins_between_two_reads_is_active(ann, settings):
    use_responder(settings, "slow")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi") as stream:
            await stream.until("TEXT_MESSAGE_CONTENT")
            talk = {**ann.talk, "before": None, "limit": 100}
            history = await sync_to_async(read_turns)(**talk)
        assert active_turn(None, history) == history.rows[0].client_id


async def test_another_person_finds_no_run(ann):
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("hi") as stream:
            await stream.rest()
        other = await sync_to_async(sign_in)(await sync_to_async(make_user)("bob"))
        async with Agent(address, other) as page, page.join(runId="run-1") as stream:
            assert stream.response.status_code == 404


async def test_the_history_leaves_the_active_reply_to_its_run(ann, settings):
    use_responder(settings, "two_messages")
    async with serving() as address, Agent(address, ann, "new") as agent:
        async with agent.run("hi") as stream:
            await stream.until("TEXT_MESSAGE_END")
            await stream.until("TEXT_MESSAGE_CONTENT")
        found = await agent.thread()
        assert [each["role"] for each in found["messages"]] == ["user"]
        async with agent.join(runId=found["activeRun"]["runId"], offset="-1") as stream:
            responders_for_tests.GO.set()
            events = await stream.rest()
        assert events[0]["threadId"] == "new"
        assert events[0]["runId"] == found["activeRun"]["runId"]
        page = Page(user("hi")).read(events)
        assert page.messages == await stored(ann, "ui:new")
        found = await agent.thread()
        assert found["activeRun"] is None
        assert found["messages"] == [
            {"id": "c1", "role": "user", "parts": [{"type": "text", "content": "hi"}]},
            *(
                {
                    "id": each["id"],
                    "role": "assistant",
                    "parts": [{"type": "text", "content": each["content"]}],
                }
                for each in page.messages[1:]
            ),
        ]


async def test_the_history_has_tools_as_parts(ann, settings):
    use_responder(settings, "with_tools")
    async with serving() as address, Agent(address, ann) as agent:
        async with agent.run("Rain?") as stream:
            await stream.rest()
        _, first, second = (await agent.thread())["messages"]
        assert first["parts"] == [
            {"type": "text", "content": "Let me look. "},
            {
                "type": "tool-call",
                "id": "c.2.0",
                "name": "weather",
                "arguments": "{}",
                "input": {},
                "state": "complete",
                "output": "rain",
            },
            {
                "type": "tool-result",
                "toolCallId": "c.2.0",
                "content": "rain",
                "state": "complete",
            },
        ]
        assert second["parts"] == [{"type": "text", "content": "It rains."}]


async def test_the_history_has_pages(ann):
    async with serving() as address, Agent(address, ann) as agent:
        for number in range(3):
            async with agent.run(f"text {number}", f"c{number}", f"run-{number}") as stream:
                await stream.rest()
        newest = await agent.thread(limit=2)
        assert newest["messages"][0]["id"] == "c2"
        assert newest["page"] == {"truncated": True, "cursor": "5"}
        older = await agent.thread(limit=2, before="5")
        assert older["messages"][0]["id"] == "c1"
        oldest = await agent.thread(limit=2, before=older["page"]["cursor"])
        assert oldest["page"] == {"truncated": False}


async def check_turn(agent: Agent, ann, seed: str, chance: random.Random) -> None:
    """Run a turn, which other pages join at different moments."""
    before = [*await stored(ann), user(seed, seed)]

    async def join(pause: float):
        await asyncio.sleep(pause)
        async with agent.join(runId=f"run-{seed}", offset="-1") as stream:
            return await stream.rest()

    pages = [asyncio.ensure_future(join(chance.uniform(0, 0.3))) for _ in range(3)]
    async with agent.run(seed, seed, f"run-{seed}") as stream:
        found = [await stream.rest()]
    found += [events for events in await asyncio.gather(*pages) if events]
    for events in found:
        page = Page(*copy.deepcopy(before)).read(events)
        assert page.end is not None
        assert page.messages == await stored(ann), seed


@pytest.mark.slow
async def test_pages_show_what_is_stored(ann, settings):
    use_responder(settings, "by_seed", READS_PER_MINUTE=None)
    chance = random.Random(7)  # noqa: S311  # no secret
    async with serving() as address, Agent(address, ann) as agent:
        for turn in range(TURNS):
            await check_turn(agent, ann, f"s{turn}", chance)
