"""Parse the dialogues of other programs: a simple format, OpenAI's and LangChain's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chatmemory import codec
from chatmemory.errors import BadInput

BATCH = 1_000
"""Messages in one batch; a longer dialogue is stored in several batches."""

ROLES = {role: role for role in ("user", "assistant", "system")}
ROLES |= {"human": "user", "ai": "assistant"}
OPENAI_ROLES = {role: role for role in codec.ROLES} | {"developer": "system", "function": "tool"}

_IGNORED = {"tools", "functions", "parallel_tool_calls"}
"""Fields of a line in OpenAI's format that are not part of the conversation."""

_FOREIGN = {"mapping", "chat_messages", "chat", "conversationId"}
"""Fields of the conversations of ChatGPT, Claude, Open WebUI and LibreChat."""

Message = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """The session in one line of the file."""

    id: str
    messages: Sequence[Message]

    def batches(self) -> Iterator[tuple[str, Sequence[Message]]]:
        """Yield the batches to store, each with its client_id."""
        for number, start in enumerate(range(0, len(self.messages), BATCH), 1):
            client_id = self.id if number == 1 else f"{self.id}:{number}"
            yield client_id, self.messages[start : start + BATCH]

    def digest(self) -> str:
        """Return a hash of the messages, with 32 hexadecimal digits."""
        return _dialogue_digest(list(self.messages))


def read_dialogue(value: object) -> Dialogue:
    """Parse a line; the id is a hash in LangChain's format, and in OpenAI's format without an id.

    Raises BadInput.
    """
    match value:
        case dict() if not _FOREIGN.isdisjoint(value):
            message = (
                "This is a conversation of another product; see docs/howto/bring-your-chats.md."
            )
            raise BadInput(message, code="bad_shape")
        case {"id": str(id_), "turns": [_, *_] as turns}:
            messages = [_parse_message(turn, f"turns[{index}]") for index, turn in enumerate(turns)]
        case {"messages": [_, *_] as given, **others}:
            messages = [from_openai(one, f"messages[{index}]") for index, one in enumerate(given)]
            if unknown := others.keys() - _IGNORED - {"id"}:
                raise codec.unknown_field(min(map(str, unknown)))
            id_ = codec.check_client_id(others.get("id", _dialogue_digest(messages)), field="id")
        case [_, *_] as given:
            messages = [_from_langchain(one, f"[{index}]") for index, one in enumerate(given)]
            id_ = _dialogue_digest(messages)
        case _:
            raise BadInput(
                "The line must be an object with id (text) and turns (list), or in another format.",
                code="bad_shape",
            )
    dialogue = Dialogue(id=id_, messages=messages)
    for client_id, _ in dialogue.batches():
        codec.check_client_id(client_id, field="id")
    return dialogue


def is_langchain(entries: Sequence[object]) -> bool:
    """Whether a list is a line in LangChain's format, and not a list of lines."""
    first = entries[0]
    return isinstance(first, dict) and {"type", "data"} <= first.keys()


def _dialogue_digest(messages: list[Message]) -> str:
    return hashlib.sha256(codec.dump_json(messages).encode(errors="replace")).hexdigest()[:32]


def _parse_message(turn: object, field: str) -> Message:
    match turn:
        case {"role": str(name), "text": str(text)} if name in ROLES:
            role = ROLES[name]
        case _:
            names = ", ".join(ROLES)
            raise BadInput(f"{field} must have a role ({names}) and a text.", field=field)
    if role == "user":
        codec.check_text(text, field=f"{field}.text")
    return {"role": role, "content": text}


def _from_langchain(given: object, field: str) -> Message:
    from chatmemory.langchain.messages import from_dict

    return from_dict(given, field=field)


def from_openai(given: object, field: str) -> Message:
    """Convert a message of OpenAI's chat completions to a plain one. Raises BadInput.

    Fields without a plain counterpart are kept in `additional_kwargs`.
    """
    match given:
        case {"role": str(name), **rest} if name in OPENAI_ROLES:
            others = {key: value for key, value in rest.items() if value is not None}
        case _:
            names = ", ".join(OPENAI_ROLES)
            raise BadInput(f"{field} must have a role ({names}).", field=field)
    message: Message = {"role": OPENAI_ROLES[name], "content": others.pop("content", "")}
    if name == "function":
        message["kind"] = "function"
    for key in ("name", "tool_call_id"):
        if key in others:
            message[key] = others.pop(key)
    if "tool_calls" in others:
        message |= _parse_calls(others.pop("tool_calls"), f"{field}.tool_calls")
    if others:
        message["additional_kwargs"] = others
    return message


def _parse_calls(given: object, field: str) -> dict[str, list[Message]]:
    calls: dict[str, list[Message]] = {}
    for call in given if isinstance(given, list) else [given]:
        match call:
            case {"id": str(id_), "function": {"name": str(name), "arguments": str(arguments)}}:
                known, args = _parse_arguments(arguments)
            case _:
                raise BadInput(f"{field} must have an id and a function.", field=field)
        kind = "tool_call" if known else "invalid_tool_call"
        one: Message = {"name": name, "args": args, "id": id_, "type": kind}
        calls.setdefault(f"{kind}s", []).append(one if known else one | {"error": None})
    return calls


def _parse_arguments(text: str) -> tuple[bool, object]:
    try:
        value = codec.parse_json(text)
    except BadInput:
        return False, text
    return (True, value) if isinstance(value, dict) else (False, text)
