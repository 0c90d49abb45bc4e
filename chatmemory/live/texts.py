"""Streamed texts: of this process's runs, and mirrors of the texts of other processes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any, NamedTuple

from chatmemory.live.blocks import LiveBlocks
from chatmemory.models import Head
from chatmemory.responders import Progress


class SessionRef(NamedTuple):
    """The session of a streamed text.

    A restored database may assign the primary key to another session, which has another epoch.
    """

    session_pk: int
    epoch: int


class EncodedText(NamedTuple):
    """A frame of a text, and the position after it."""

    frame: str
    """Empty if there was nothing to send."""
    piece: int
    char: int
    chars: int
    """How many characters of the text the frame has."""


@dataclass(slots=True)
class LiveText:
    """The text of one step of a run, in pieces; a reader's position is a number of pieces."""

    turn: str
    step: int
    pieces: list[str | Progress] = field(default_factory=list)
    published: int = 0
    """How many pieces were released to sockets and other processes. See Note [Ticks]."""
    received: int = 0
    """In a mirror, how many of the owner's pieces arrived; `pack` joins them, so fewer are here."""

    frames: dict[Hashable, EncodedText] = field(default_factory=dict)
    """The last frames that sockets sent, by their positions, so that the others send the same."""
    blocks: dict[str, LiveBlocks] = field(default_factory=dict)
    """The finished blocks as HTML, by language; only the languages that sockets show."""

    def publish(self) -> None:
        """Release all pieces."""
        self.frames = {}
        self.published = len(self.pieces)

    @property
    def text(self) -> str:
        """The text without the progress events."""
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    def blocks_in(
        self, language: str, notify: Callable[[], object], person: Hashable = None
    ) -> LiveBlocks:
        """Return the blocks in a language; later calls use the `notify` of the first call."""
        found = self.blocks.get(language)
        if found is None:
            new = LiveBlocks(self, language, notify, person)
            # `setdefault`: sockets of two event loops share one.
            found = self.blocks.setdefault(language, new)
        return found


class Mirrored(Enum):
    """The effect of an event from another process on its mirror."""

    IGNORED = "ignored"
    """The run is in this process."""
    BEGUN = "begun"
    EXTENDED = "extended"
    """Or unchanged, if the piece was a repetition."""
    INCOMPLETE = "incomplete"
    """An earlier piece is missing."""


class Texts:
    """Texts and mirrors, by session and epoch.

    Runs change texts, and only the hub's thread changes mirrors; any thread reads both. There is no
    lock: each operation on a dict or list is atomic, and loops use a copy.
    """

    def __init__(self) -> None:
        self._texts: dict[SessionRef, LiveText] = {}
        self._mirrors: dict[SessionRef, LiveText] = {}
        self._scheduled: set[SessionRef] = set()
        self._requested: set[SessionRef] = set()
        """The own texts that another process shows, until their turn ends."""

    def clear(self) -> None:
        for collection in (self._texts, self._mirrors, self._scheduled, self._requested):
            collection.clear()

    def begin(self, ref: SessionRef, turn: str, step: int) -> LiveText:
        """Replace the session's text with an empty one for this step."""
        text = self._texts[ref] = LiveText(turn, step)
        return text

    def end(self, ref: SessionRef, turn: str) -> None:
        """Drop the text of a turn that ended: its rows contain it."""
        for texts in (self._texts, self._mirrors):
            text = texts.get(ref)
            if text is not None and text.turn == turn:
                texts.pop(ref, None)
                self._requested.discard(ref)

    def get(self, ref: SessionRef) -> LiveText | None:
        return self._texts.get(ref) or self._mirrors.get(ref)

    def own_refs(self, session_pk: int | None) -> list[SessionRef]:
        """Return the sessions of the session's texts, or of all, whose run is in this process."""
        return _refs(self._texts, session_pk)

    def request(self, ref: SessionRef) -> None:
        """Let another process receive the pieces of this own text."""
        self._requested.add(ref)

    def is_requested(self, ref: SessionRef) -> bool:
        return ref in self._requested

    def is_scheduled(self, ref: SessionRef) -> bool:
        """Whether a tick will release new pieces."""
        return ref in self._scheduled

    def schedule(self, ref: SessionRef) -> None:
        self._scheduled.add(ref)

    def unschedule(self, ref: SessionRef) -> None:
        self._scheduled.discard(ref)

    def next_event(self, ref: SessionRef) -> dict[str, object] | None:
        """Release the new pieces, and return the event with them; None without any."""
        text = self._texts.get(ref)
        if text is None:
            return None
        begin = text.published
        text.publish()
        return _event(ref, text, begin) if text.published > begin else None

    def whole_event(self, ref: SessionRef) -> dict[str, object] | None:
        """Return an event with all released pieces."""
        text = self._texts.get(ref)
        return None if text is None else _event(ref, text, 0)

    def mirror(self, event: Mapping[str, Any]) -> Mirrored:
        """Apply an event that `next_event` made in another process."""
        ref = SessionRef(event["session"], event["epoch"])
        if ref in self._texts:
            return Mirrored.IGNORED
        mirror = self._mirrors.get(ref)
        if mirror is not None and (mirror.turn, mirror.step) != (event["turn"], event["step"]):
            mirror = None  # it belongs to an earlier turn or step
        # A whole text, which this process requested. A shorter one was delayed on its way.
        if event["from"] == 0 and (mirror is None or mirror.received < event["to"]):
            mirror = LiveText(event["turn"], event["step"], unpack(event["pieces"]))
            mirror.received = event["to"]
            mirror.publish()
            self._mirrors[ref] = mirror
            return Mirrored.BEGUN
        if mirror is None or event["from"] > mirror.received:
            return Mirrored.INCOMPLETE
        if event["from"] == mirror.received:
            mirror.pieces += unpack(event["pieces"])
            mirror.received = event["to"]
            mirror.publish()
        return Mirrored.EXTENDED

    def drop_mirrors(self, session_pk: int) -> None:
        for ref in _refs(self._mirrors, session_pk):
            self._mirrors.pop(ref, None)

    def missing(self, heads: Iterable[Head]) -> list[int]:
        """Return the sessions whose running turn has no text here, by primary key."""
        pks = []
        for head in heads:
            text = self.get(SessionRef(head.pk, head.epoch))
            if head.running is not None and (text is None or text.turn != head.running):
                pks.append(head.pk)
        return pks

    def drop_ended_mirrors(self, heads: Mapping[int, Head]) -> None:
        """Drop the mirrors whose turn no longer runs."""
        for ref, mirror in tuple(self._mirrors.items()):
            head = heads.get(ref.session_pk)
            if head is None or (head.epoch, head.running) != (ref.epoch, mirror.turn):
                self._mirrors.pop(ref, None)


def _event(ref: SessionRef, text: LiveText, begin: int) -> dict[str, object]:
    """Return an event with the released pieces from `begin` on."""
    end = text.published
    return {
        "session": ref.session_pk,
        "epoch": ref.epoch,
        "pieces": pack(text.pieces[begin:end]),
        "turn": text.turn,
        "step": text.step,
        "from": begin,
        "to": end,
    }


def _refs(texts: Mapping[SessionRef, LiveText], session_pk: int | None) -> list[SessionRef]:
    return [ref for ref in tuple(texts) if session_pk in (None, ref.session_pk)]


def pack(pieces: Iterable[str | Progress]) -> list[str | list[str]]:
    """Convert pieces to JSON values, with adjacent text joined."""
    packed: list[str | list[str]] = []
    for is_text, together in groupby(pieces, lambda piece: isinstance(piece, str)):
        if is_text:
            packed.append("".join(map(str, together)))
        else:
            packed += (list(astuple(event)) for event in together)  # type: ignore[arg-type]  # no text
    return packed


def unpack(pieces: Iterable[str | list[str]]) -> list[str | Progress]:
    return [piece if isinstance(piece, str) else Progress(*piece) for piece in pieces]  # type: ignore[arg-type]  # packed here
