"""The offline demo model: it knows what the user said in the window, and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

from chatmemory.codec import text_of
from chatmemory.models import Session

PAUSE = 0.02
"""Seconds between two words."""

_NAME = r"([A-Z][\w'-]*(?: [A-Z][\w'-]*){0,2})"
_DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_MONTH = r"(?:Jan|Febr)uary|March|April|May|June|July|August|(?:Septem|Octo|Novem|Decem)ber"
_DATE = (
    rf"(\d{{4}}-\d\d-\d\d|(?:{_MONTH}) \d{{1,2}}(?:st|nd|rd|th)?"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?(?: of)? (?:{_MONTH})|{_DAY})\b"
)
_TOLD = {
    "name": rf"\b(?:I'm|I am|[Cc]all me|[Nn]ame(?:'s| is)) {_NAME}|\b[Mm]y name(?:'s| is) (\w+)",
    "order number": r"\b[Oo]rder(?: number| no\.?| id)?(?: is|:)?[ #]+"
    r"(?=[-\w]{3})([-\w]{0,30}?\d[-\w]{0,30})",
    "city": rf"(?:\b(?:[Ll]ive|[Bb]ased|[Oo]ffice|[Mm]oved?|am)|I'm) (?:in|to|from) {_NAME}"
    rf"|\b[Mm]y (?:city|town)(?: is|:) {_NAME}",
    "email": r"(?<![\w.+-])([\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+)",
    "phone number": r"\b(?:[Pp]hone|[Nn]umber|[Cc]all me)[^\d+]{1,15}(\+?\d[\d ()/-]{5,20}\d)",
    "date": _DATE,
}
_ANYTHING = re.compile(r"\b[Mm]y ([a-z][a-z -]{1,30}?) (?:is called|is|are) ([^.,;!?\n]{1,80})")
_SAME = {
    "order": "order number",
    "order id": "order number",
    "e-mail": "email",
    "mail": "email",
    "email address": "email",
    "e-mail address": "email",
    "town": "city",
    "home": "city",
    "phone": "phone number",
    "telephone number": "phone number",
    "day": "date",
    "first name": "name",
}
_QUOTED = re.compile(r"what (?:did|have) i (?:say|said|tell you|told you|mention)\w* about (.+)")
_ASKED = re.compile(
    r"\b(?:what(?:'s| is| was| are)|do you (?:still )?(?:know|remember)|(?:tell|remind) me(?: of)?"
    r"|repeat) (?=my\b)"
)
_MINE = re.compile(r"\bmy ([a-z][a-z -]{0,30}?)(?= (?:and|or|again|is|was)\b|\s*[,.;!?]|\s*$)")
_DID_I_SAY = re.compile(r"\b(?:what|which) ([a-z][a-z -]{0,30}?) did i (?:say|give|tell|mention)")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[Nn]o\.)\s+(?=\D)|\n+")
_STOP_WORDS = """
    a about am an and are as at be but by can did do does for from had has have i i'd i'll i'm if in
    is it it's its me my no not of on or our please said say so some that the their them then there
    they this to was we were what when where which who will with would you your
"""
_STOPPED = frozenset(_STOP_WORDS.split())


async def answer(messages: list[dict[str, object]], session: Session) -> AsyncGenerator[str, None]:
    """Say the reply word by word."""
    for word in re.findall(r"\s*\S+", reply(messages)):
        yield word
        await asyncio.sleep(PAUSE)


def reply(messages: Sequence[Mapping[str, object]]) -> str:
    """What the model says after these messages; always the same after the same."""
    *said, last = [text_of(m["content"]) for m in messages if m["role"] == "user"]
    question = _lowered(last)
    if found := _QUOTED.search(question):
        return _quote(found[1], said)
    if asked := list(_asked(question)):
        known = facts([*said, last])
        return " ".join(_recalled(name, known) for name in dict.fromkeys(asked))
    if told := facts([last]):
        return _confirmed(told)
    if re.match(r"(?:hi|hello|hey|good (?:morning|day|evening))\b", question):
        return "Hello! Tell me something about yourself, and ask me about it later."
    if question.rstrip().endswith("?"):
        return (
            "I don't know that. I'm the demo model: without a network, I know only what you "
            "tell me here. Try *What did I say about …?*"
        )
    return "I see. I keep that in mind; ask me about it whenever you like."


def facts(said: Sequence[str]) -> dict[str, str]:
    """What these texts tell of the one who said them; the newest of each."""
    known: dict[str, str] = {}
    for sentence in _told(said):
        for found in _ANYTHING.finditer(sentence):
            known[_canonical(found[1])] = found[2].strip()
        for name, pattern in _TOLD.items():
            for found in re.finditer(pattern, sentence.replace("\u2019", "'")):
                known[name] = next(filter(None, found.groups()))
    return known


def sentences(text: str) -> list[str]:
    """The sentences of a text, as they stand in it."""
    return list(filter(None, _SENTENCE_END.split(text.strip())))


def keywords(text: str) -> set[str]:
    """The words that say what a text is about, without their plural s."""
    words = re.findall(r"\w+(?:['-]\w+)*", _lowered(text))
    return {re.sub(r"(?<!s)s$", "", word) for word in words if word not in _STOPPED}


def _quote(topic: str, said: Sequence[str]) -> str:
    """The sentence that shares most words with the topic; of several, the newest."""
    wanted = keywords(topic)
    best, most = "", 0
    for sentence in _told(said):
        shared = len(wanted & keywords(sentence))
        if shared and shared >= most:
            best, most = sentence, shared
    if best:
        return f'You said: "{best}"'
    return "I don't know: you haven't told me anything about that here."


def _asked(question: str) -> Iterator[str]:
    """What of the user's own a question asks for."""
    if "who am i" in question:
        yield "name"
    if "where do i live" in question:
        yield "city"
    for found in _DID_I_SAY.finditer(question):
        yield _canonical(found[1])
    if opened := _ASKED.search(question):
        for found in _MINE.finditer(question, opened.start()):
            yield _canonical(found[1])


def _told(said: Sequence[str]) -> Iterator[str]:
    """The sentences that don't themselves ask for something said before."""
    for text in said:
        for sentence in sentences(text):
            question = _lowered(sentence)
            if not _QUOTED.search(question) and not any(_asked(question)):
                yield sentence


def _lowered(text: str) -> str:
    return text.lower().replace("\u2019", "'")


def _canonical(name: str) -> str:
    return _SAME.get(name, name)


def _recalled(name: str, known: Mapping[str, str]) -> str:
    if name in known:
        return f"Your {name} is **{known[name]}**."
    return f"I don't know your {name}; you haven't told me here."


def _confirmed(told: Mapping[str, str]) -> str:
    rest = [f"your {name} is **{value}**" for name, value in told.items() if name != "name"]
    greeting = f"Nice to meet you, **{told['name']}**. " if "name" in told else ""
    if not rest:
        return f"{greeting}I'll remember your name."
    return f"{greeting}I'll remember: {', '.join(rest)}."
