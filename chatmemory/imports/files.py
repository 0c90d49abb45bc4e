"""Import a file of another product: recognize it, convert its conversations, and store them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from itertools import islice
from typing import Any, BinaryIO, TypeVar

from chatmemory import codec
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.formats import FileReader, Outcome, Target
from chatmemory.imports import chatgpt, claude, librechat, open_webui
from chatmemory.imports.archives import is_archive, open_members
from chatmemory.imports.conversations import Conversation, NoMessages
from chatmemory.imports.reading import Item, first_keys, read_items
from chatmemory.imports.storing import Storing

PRODUCTS: dict[str, Callable[[Mapping[str, Any]], Conversation]] = {
    product.NAME: product.read for product in (chatgpt, claude, open_webui, librechat)
}

_FIELDS = {
    "mapping": chatgpt.NAME,
    "chat_messages": claude.NAME,
    "chat": open_webui.NAME,
    "history": open_webui.NAME,
    "conversationId": librechat.NAME,
    "messagesTree": librechat.NAME,
}
"""Products by a field of their conversations."""

_DETECTED = {"mapping", "chat_messages", "chat", "conversationId", "messagesTree"}
"""The fields by which a file is recognized."""

EMPTY = "without messages"
"""The name of a count in the report."""

E = TypeVar("E", bound=ChatMemoryError)

HEAD = 2**16
_MAX_HEAD_KEYS = 2_000


def recognizes(stream: BinaryIO) -> bool:
    """Whether the file is of one of the products. Reads nothing from the stream for good."""
    head = _head_of(stream)
    if is_archive(head):
        return True
    # A line of the format jsonl has such keys deeper, if at all.
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"[", b"{")) and any(
        key in _DETECTED for key in islice(first_keys(head), _MAX_HEAD_KEYS)
    )


def _head_of(stream: BinaryIO) -> bytes:
    if stream.seekable():
        head = stream.read(HEAD)
        stream.seek(0)
        return head
    return stream.peek(HEAD) if isinstance(stream, BufferedReader) else b""


def import_file(stream: BinaryIO, format: str | None, target: Target) -> Iterator[Outcome]:
    """Store the conversations of a file; yield one outcome for each.

    `format` is a product, or None to recognize it. A conversation is stored completely or not at
    all; a rejected one is an outcome with its error. So is the last one, if the rest of the file
    can't be read. Raises BadInput if nothing can be read, MemoryUnavailable and Busy; then repeat
    the call.
    """
    if target.scope is None:
        raise BadInput("The owner or the scope is required for this format.", field="scope")
    codec.check_value(target.reason, "reason")
    storing = Storing(target)
    if is_archive(_head_of(stream)):
        members: Iterator[tuple[str, BinaryIO]] = open_members(stream)
    else:
        members = iter([("", stream)])
    number = 0
    try:
        for _, member in members:
            for item in read_items(member):
                number += 1
                yield _import_item(item, number, format, storing)
    except BadInput as error:
        if not number:
            raise with_code(error) from error
        yield Outcome(line=number, place="End", error=with_code(error))
        return
    if not number:
        raise with_code(BadInput("The file has no conversations.", code="empty"))


def _import_item(item: Item, number: int, format: str | None, storing: Storing) -> Outcome:
    place = f"Conversation {number}"
    try:
        if item.error is not None:
            raise item.error
        place += _shown_id(item.value)
        conversation = _convert(item.value, format)
        return storing.store(conversation, number=number, place=place)
    except NoMessages:
        return Outcome(line=number, place=place, is_skipped=True, more={EMPTY: 1})
    except ChatMemoryError as error:
        if error.retry:
            error.args = (f"{place}: {error}",)
            raise
        return Outcome(line=number, place=place, error=with_code(error))


def with_code(error: E) -> E:
    """Add the code to the text, which the command prints; return the error."""
    error.args = (f"{error} ({error.code})",)
    return error


def _shown_id(value: object) -> str:
    """Return the id of a conversation in brackets, as text that is safe to print."""
    if isinstance(value, dict):
        for field in ("conversation_id", "id", "uuid", "conversationId"):
            if isinstance(value.get(field), str):
                return f" ({ascii(value[field][:80])[1:-1]})"
    return ""


def _convert(value: object, format: str | None) -> Conversation:
    """Convert a conversation of the product, or of the one that its fields show."""
    if not isinstance(value, dict):
        raise BadInput("A conversation must be an object.", code="bad_shape")
    found = next((name for field, name in _FIELDS.items() if field in value), None)
    if found is None and format is None:
        names = ", ".join(PRODUCTS)
        raise BadInput(f"This is no conversation of {names}.", code="bad_shape")
    if format is not None and found not in (None, format):
        message = f"This is a conversation of {found}, not of {format}."
        raise BadInput(message, code="bad_shape")
    name = format or found
    assert name is not None  # noqa: S101  # one of them is given
    return PRODUCTS[name](value)


READER = FileReader(recognizes=recognizes, read=import_file)
