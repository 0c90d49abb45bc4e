"""Made-up files in the shapes of the exports of four products, and what an import makes of them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from chatmemory.codec import UNKNOWN_OUTCOME

ROOT = "00000000-0000-4000-8000-000000000000"
"""The parent of a first message at Claude."""
NO_PARENT = "00000000-0000-0000-0000-000000000000"
"""The parent of a first message at LibreChat."""

TIME = 1_700_000_000
"""2023-11-14 22:13:20 UTC."""

Row = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A file, and its first conversation as it is stored."""

    content: bytes
    key: str
    rows: list[Row]
    """Roles and texts."""
    seconds: list[float]
    """The times of the rows, after TIME."""
    title: str = ""
    models: list[str] = field(default_factory=list)
    """The models of the assistant's rows; empty if none is named."""
    lost: dict[str, int] = field(default_factory=dict)
    sessions: int = 1
    name: str = "export.json"


def dumped(value: object, **options: Any) -> bytes:
    return json.dumps(value, **options).encode()


def zipped(**members: object) -> bytes:
    """Return a ZIP archive; `__` in a name is a slash, `_` a hyphen."""
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for name, value in members.items():
            path = name.replace("__", "/").replace("_", "-")
            archive.writestr(f"{path}.json", dumped(value))
    return file.getvalue()


def gpt_message(role: str, *parts: Any, at: float | None = None, **more: Any) -> dict[str, Any]:
    """Return a message of ChatGPT."""
    content = more.pop("content", {"content_type": "text", "parts": list(parts)})
    time = None if at is None else TIME + at
    author = {"role": role, "name": more.pop("name", None), "metadata": {}}
    return {"author": author, "create_time": time, "content": content, **more}


def gpt(*messages: dict[str, Any] | None, id_: str = "g1", **more: Any) -> dict[str, Any]:
    """Return a conversation of ChatGPT whose messages follow one another: n0, n1, and so on."""
    mapping = {
        f"n{n}": {
            "id": f"n{n}",
            "parent": f"n{n - 1}" if n else None,
            "children": [f"n{n + 1}"] if n < len(messages) - 1 else [],
            "message": message,
        }
        for n, message in enumerate(messages)
    }
    last = f"n{len(messages) - 1}"
    found = {"id": id_, "title": "Weather", "create_time": TIME, "current_node": last}
    return {**found, "mapping": mapping, **more}


def claude_message(number: int, sender: str, text: Any = "", **more: Any) -> dict[str, Any]:
    """Return a message of Claude, with the one before it as its parent."""
    return {
        "uuid": f"u{number}",
        "text": text,
        "sender": sender,
        "created_at": f"2023-11-14T22:13:{20 + number:02}.500000Z",
        "attachments": [],
        "files": [],
        "content": [{"type": "text", "text": text}],
        "parent_message_uuid": f"u{number - 1}" if number else ROOT,
        **more,
    }


def claude(*messages: dict[str, Any], id_: str = "k1", **more: Any) -> dict[str, Any]:
    """Return a conversation of Claude."""
    created = "2023-11-14T22:13:20Z"
    found = {"uuid": id_, "name": "Weather", "created_at": created, "account": {"uuid": "x"}}
    return {**found, "chat_messages": list(messages), **more}


def webui_message(number: int, role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return a message of Open WebUI, with the one before it as its parent."""
    return {
        "id": f"w{number}",
        "parentId": f"w{number - 1}" if number else None,
        "childrenIds": [],
        "role": role,
        "content": content,
        "timestamp": TIME + number,
        **more,
    }


def webui(*messages: dict[str, Any], id_: str = "o1", **more: Any) -> dict[str, Any]:
    """Return a chat of Open WebUI with a history."""
    history = {"messages": {one["id"]: one for one in messages}, "currentId": messages[-1]["id"]}
    chat = {"title": "Weather", "models": ["m"], "history": history, "messages": []}
    found = {"id": id_, "user_id": "x", "title": "Weather", "created_at": TIME}
    return {**found, "chat": {**chat, **more}}


def libre_message(number: int, text: Any = "", **more: Any) -> dict[str, Any]:
    """Return a message of LibreChat: of the user if the number is even."""
    is_user = number % 2 == 0
    return {
        "messageId": f"l{number}",
        "parentMessageId": f"l{number - 1}" if number else NO_PARENT,
        "isCreatedByUser": is_user,
        "sender": "User" if is_user else "GPT-4",
        "text": text,
        "createdAt": f"2023-11-14T22:13:{20 + number:02}.000Z",
        **more,
    }


def libre(messages: list[Any], **more: Any) -> dict[str, Any]:
    """Return a conversation of LibreChat."""
    found = {"conversationId": "b1", "endpoint": "openAI", "title": "Weather"}
    return {**found, "branches": False, "recursive": False, "messages": messages, **more}


TWO = [("user", "Sun?"), ("assistant", "Rain.")]
SUN, RAIN = gpt_message("user", "Sun?", at=1), gpt_message("assistant", "Rain.", at=2.5)
GPT: dict[str, Any] = {"key": "chatgpt:g1", "title": "Weather"}
CLAUDE: dict[str, Any] = {"key": "claude:k1", "title": "Weather"}
WEBUI: dict[str, Any] = {"key": "open-webui:o1", "title": "Weather"}
LIBRE: dict[str, Any] = {"key": "librechat:b1", "title": "Weather"}

HIDDEN = {"is_visually_hidden_from_conversation": True}
CONTEXT = {"content_type": "user_editable_context", "user_profile": "A", "user_instructions": "B"}
CODE = {"content_type": "code", "language": "unknown", "text": "1 + 1"}
OUTPUT = {"content_type": "execution_output", "text": "2"}
IMAGE = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://f1"}

_edited = gpt(SUN, RAIN)
_edited["mapping"] |= {
    "e0": {"parent": None, "message": gpt_message("user", "Snow?", at=7)},
    "e1": {"parent": "e0", "message": gpt_message("assistant", "No.", at=8)},
}

_without_current = gpt(None, SUN, RAIN)
del _without_current["current_node"]

_tree = [
    libre_message(
        0,
        "Sun?",
        children=[
            libre_message(1, "Old.", messageId="old", children=[]),
            libre_message(1, "Rain.", model="gpt-4", children=[]),
        ],
    )
]

_tool_blocks = [
    {"type": "thinking", "thinking": "Hm."},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
    {"type": "text", "text": "Rain."},
]
_tool_rows = [
    ("user", "Sun?"),
    ("assistant", "I look."),
    ("tool", "rain"),
    ("assistant", "Rain."),
]

SAMPLES = {
    "chatgpt list": Sample(
        content=dumped([gpt(None, SUN, RAIN)]), **GPT, rows=TWO, seconds=[1, 2.5]
    ),
    "chatgpt indented, with a byte order mark": Sample(
        content=b"\xef\xbb\xbf" + dumped([gpt(SUN, RAIN)], indent=2),
        **GPT,
        rows=TWO,
        seconds=[1, 2.5],
    ),
    "chatgpt one conversation": Sample(
        content=dumped(gpt(SUN, RAIN)), **GPT, rows=TWO, seconds=[1, 2.5]
    ),
    "chatgpt ZIP": Sample(
        content=zipped(user={}, conversations=[gpt(SUN, RAIN), gpt(SUN, id_="g2")]),
        **GPT,
        rows=TWO,
        seconds=[1, 2.5],
        sessions=2,
        name="export.zip",
    ),
    "chatgpt split ZIP": Sample(
        content=zipped(
            a__conversations_001=[gpt(SUN, id_="g2")], a__conversations_000=[gpt(SUN, RAIN)]
        ),
        **GPT,
        rows=TWO,
        seconds=[1, 2.5],
        sessions=2,
        name="export.zip",
    ),
    "chatgpt without times and metadata": Sample(
        content=dumped([gpt(gpt_message("user", "Sun?"), RAIN, gpt_message("user", "Oh."))]),
        **GPT,
        rows=[*TWO, ("user", "Oh.")],
        seconds=[0, 2.5, 2.5],
    ),
    "chatgpt other branch": Sample(
        content=dumped([_edited]), **GPT, rows=TWO, seconds=[1, 2.5], lost={"branch_messages": 2}
    ),
    "chatgpt without current_node": Sample(
        content=dumped([_without_current]), **GPT, rows=TWO, seconds=[1, 2.5]
    ),
    "chatgpt hidden and system": Sample(
        content=dumped(
            [
                gpt(
                    None,
                    gpt_message("system", ""),
                    gpt_message("system", "Be short."),
                    gpt_message("user", content=CONTEXT, metadata=HIDDEN),
                    gpt_message("user", "x", metadata=HIDDEN),
                    SUN,
                    gpt_message("assistant", content={"content_type": "thoughts", "thoughts": []}),
                    RAIN,
                    default_model_slug="gpt-5",
                )
            ]
        ),
        **GPT,
        rows=TWO,
        seconds=[1, 2.5],
        models=["gpt-5"],
        lost={"system_messages": 1, "hidden_messages": 2, "reasoning": 1},
    ),
    "chatgpt tools and code": Sample(
        content=dumped(
            [
                gpt(
                    SUN,
                    gpt_message("assistant", content=CODE, recipient="python", at=2),
                    gpt_message("tool", content=OUTPUT, name="python", at=3),
                    gpt_message("tool", "again", name="python", at=3),
                    gpt_message("assistant", content={**CODE, "language": "python"}, at=4),
                    gpt_message("assistant", "x", recipient="bio", at=5),
                )
            ]
        ),
        **GPT,
        rows=[
            ("user", "Sun?"),
            ("assistant", ""),
            ("tool", "2"),
            ("assistant", "```python\n1 + 1\n```"),
            ("assistant", ""),
            ("tool", UNKNOWN_OUTCOME),
        ],
        seconds=[1, 2, 3, 4, 5, 5],
        lost={"tool_results": 1},
    ),
    "chatgpt images, audio and files": Sample(
        content=dumped(
            [
                gpt(
                    gpt_message(
                        "user",
                        content={
                            "content_type": "multimodal_text",
                            "parts": [
                                IMAGE,
                                {"content_type": "audio_transcription", "text": "Sun?"},
                                {"content_type": "audio_asset_pointer"},
                                {"content_type": "new_thing"},
                            ],
                        },
                        metadata={
                            "attachments": [{"mime_type": "image/png"}, {"mimeType": "text/csv"}]
                        },
                        at=1,
                    ),
                    {**RAIN, "metadata": {"model_slug": "gpt-4o"}},
                )
            ]
        ),
        **GPT,
        rows=TWO,
        seconds=[1, 2.5],
        models=["gpt-4o"],
        lost={"images": 1, "audio": 1, "files": 1, "unknown_blocks": 1},
    ),
    "claude list": Sample(
        content=dumped(
            [claude(claude_message(0, "human", "Sun?"), claude_message(1, "assistant", "Rain."))]
        ),
        **CLAUDE,
        rows=TWO,
        seconds=[0.5, 1.5],
    ),
    "claude ZIP": Sample(
        content=zipped(
            users=[],
            projects=[],
            conversations=[claude(claude_message(0, "human", "Sun?")), claude(id_="k2")],
        ),
        **CLAUDE,
        rows=TWO[:1],
        seconds=[0.5],
        sessions=1,
        name="claude.zip",
    ),
    "claude old, with text only": Sample(
        content=dumped(
            [
                claude(
                    {"uuid": "u0", "sender": "human", "text": "Sun?", "created_at": None},
                    {"uuid": "u1", "sender": "assistant", "text": "Rain."},
                )
            ]
        ),
        **CLAUDE,
        rows=TWO,
        seconds=[0, 0],
    ),
    "claude in an object": Sample(
        content=dumped(
            {"account": {}, "conversations": [claude(claude_message(0, "human", "Sun?"))]}
        ),
        **CLAUDE,
        rows=TWO[:1],
        seconds=[0.5],
    ),
    "claude tools and thinking": Sample(
        content=dumped(
            [
                claude(
                    claude_message(0, "human", "Sun?"),
                    claude_message(1, "assistant", "", content=_tool_blocks),
                )
            ]
        ),
        **CLAUDE,
        rows=_tool_rows,
        seconds=[0.5, 1.5, 1.5, 1.5],
        lost={"reasoning": 1},
    ),
    "claude branch of a current leaf": Sample(
        content=dumped(
            [
                claude(
                    claude_message(0, "human", "Sun?"),
                    claude_message(1, "assistant", "Rain."),
                    claude_message(2, "assistant", "Snow.", parent_message_uuid="u0"),
                    current_leaf_message_uuid="u1",
                    model="claude-opus",
                )
            ]
        ),
        **CLAUDE,
        rows=TWO,
        seconds=[0.5, 1.5],
        models=["claude-opus"],
        lost={"branch_messages": 1},
    ),
    "claude attachments": Sample(
        content=dumped(
            [
                claude(
                    claude_message(
                        0,
                        "human",
                        "Sun?",
                        attachments=[{"file_name": "a.txt", "extracted_content": "x"}],
                        files=[{"file_name": "b.pdf"}, {"file_kind": "image"}],
                    )
                )
            ]
        ),
        **CLAUDE,
        rows=TWO[:1],
        seconds=[0.5],
        lost={"files": 2, "images": 1},
    ),
    "open-webui history": Sample(
        content=dumped(
            [
                webui(
                    webui_message(0, "user", "Sun?"),
                    webui_message(1, "assistant", "Rain.", model="llama"),
                )
            ]
        ),
        **WEBUI,
        rows=TWO,
        seconds=[0, 1],
        models=["llama"],
    ),
    "open-webui old, without history": Sample(
        content=dumped(
            [
                {
                    "id": "o1",
                    "title": "Weather",
                    "chat": {
                        "timestamp": TIME * 1000,
                        "messages": [
                            {"role": "system", "content": "Be short."},
                            {"role": "user", "content": "Sun?"},
                            {"role": "assistant", "content": "Rain.", "timestamp": TIME + 4},
                        ],
                    },
                }
            ]
        ),
        **WEBUI,
        rows=TWO,
        seconds=[0, 4],
        lost={"system_messages": 1},
    ),
    "open-webui two models and files": Sample(
        content=dumped(
            [
                webui(
                    webui_message(0, "user", "Sun?", files=[{"type": "image"}, {"type": "file"}]),
                    webui_message(2, "assistant", "Snow.", parentId="w0"),
                    webui_message(1, "assistant", "Rain."),
                )
            ]
        ),
        **WEBUI,
        rows=TWO,
        seconds=[0, 1],
        lost={"images": 1, "files": 1, "branch_messages": 1},
    ),
    "open-webui output": Sample(
        content=dumped(
            [
                webui(
                    webui_message(0, "user", "Sun?"),
                    webui_message(
                        1,
                        "assistant",
                        "<details>all of it</details>Rain.",
                        output=[
                            {"type": "reasoning", "content": []},
                            {
                                "type": "message",
                                "content": [{"type": "output_text", "text": "I look."}],
                            },
                            {
                                "type": "function_call",
                                "call_id": "c1",
                                "name": "weather",
                                "arguments": "{}",
                            },
                            {
                                "type": "function_call_output",
                                "call_id": "c1",
                                "output": [{"type": "input_text", "text": "rain"}],
                            },
                            {
                                "type": "message",
                                "content": [{"type": "output_text", "text": "Rain."}],
                            },
                        ],
                    ),
                )
            ]
        ),
        **WEBUI,
        rows=_tool_rows,
        seconds=[0, 1, 1, 1],
        lost={"reasoning": 1},
    ),
    "open-webui details": Sample(
        content=dumped(
            [
                webui(
                    webui_message(
                        0, "user", [{"type": "text", "text": "Sun?"}, {"type": "image_url"}]
                    ),
                    webui_message(
                        1,
                        "assistant",
                        '<details type="reasoning" done="true"><summary>x</summary>Hm.</details>\n'
                        '<details type="tool_calls">y</details>\nRain.',
                    ),
                )
            ]
        ),
        **WEBUI,
        rows=TWO,
        seconds=[0, 1],
        lost={"images": 1, "reasoning": 1, "tool_results": 1},
    ),
    "librechat flat": Sample(
        content=dumped(libre([libre_message(0, "Sun?"), libre_message(1, "Rain.", model="gpt-4")])),
        **LIBRE,
        rows=TWO,
        seconds=[0, 1],
        models=["gpt-4"],
    ),
    "librechat without parents and times": Sample(
        content=dumped(
            libre(
                [
                    {"messageId": "l0", "sender": "User", "text": "Sun?"},
                    {"messageId": "l1", "sender": "ChatGPT", "text": "Rain."},
                ],
                options={"model": "gpt-4"},
            )
        ),
        **LIBRE,
        rows=TWO,
        seconds=[],
        models=["gpt-4"],
    ),
    "librechat flat with branches": Sample(
        content=dumped(
            libre(
                [
                    libre_message(0, "Sun?"),
                    libre_message(1, "Old.", messageId="old"),
                    libre_message(1, "Rain."),
                ],
                branches=True,
            )
        ),
        **LIBRE,
        rows=TWO,
        seconds=[0, 1],
        lost={"branch_messages": 1},
    ),
    "librechat recursive": Sample(
        content=dumped(libre(_tree, recursive=True, branches=True)),
        **LIBRE,
        rows=TWO,
        seconds=[0, 1],
        models=["gpt-4"],
        lost={"branch_messages": 1},
    ),
    "librechat messagesTree": Sample(
        content=dumped(
            {
                **{key: value for key, value in libre([]).items() if key != "messages"},
                "recursive": True,
                "messagesTree": _tree,
            }
        ),
        **LIBRE,
        rows=TWO,
        seconds=[0, 1],
        models=["gpt-4"],
        lost={"branch_messages": 1},
    ),
    "librechat content parts": Sample(
        content=dumped(
            libre(
                [
                    libre_message(0, "Sun?", files=[{"type": "application/pdf"}]),
                    libre_message(
                        1,
                        content=[
                            {"type": "think", "think": "Hm."},
                            {"type": "text", "text": "I look."},
                            {
                                "type": "tool_call",
                                "tool_call": {
                                    "id": "c1",
                                    "name": "weather",
                                    "args": "{}",
                                    "output": "rain",
                                },
                            },
                            {"type": "text", "text": {"value": "Rain."}},
                            {"type": "image_file", "image_file": {}},
                        ],
                    ),
                ]
            )
        ),
        **LIBRE,
        rows=_tool_rows,
        seconds=[0, 1, 1, 1],
        lost={"files": 1, "reasoning": 1, "images": 1},
    ),
}
"""By the product and what is special about the file."""
