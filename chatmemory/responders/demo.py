"""The offline demo model. It answers from the user's messages in the window."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

from chatmemory.codec import text_of
from chatmemory.models import Session

PAUSE_SECONDS = 0.02
"""Delay between two words."""

_CAPITALIZED = r"[A-ZÀ-ÖØ-Þ][\w'-]*"
_PARTICLES = r"(?:(?:al|bin|da|de|del|den|der|di|dos|la|le|ten|van|von) ){0,2}"
_NAME = rf"({_CAPITALIZED}(?: {_PARTICLES}{_CAPITALIZED}){{0,2}})"
_WORD = r"(?!(?:and|but|in|my|not|of|the|to)\b)[\w'-]+"
_LOWERCASE_NAME = rf"({_WORD}(?: {_WORD}){{0,2}}(?=\s*[.,;!?]|\s*$| (?:and|but)\b)|{_WORD})"
"""A full name only if nothing else follows it: people also write "my name is anna by the way"."""
_DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_MONTH = r"(?:Jan|Febr)uary|March|April|May|June|July|August|(?:Septem|Octo|Novem|Decem)ber"
_DATE = (
    rf"(\d{{4}}-\d\d-\d\d|(?:{_MONTH}) \d{{1,2}}(?:st|nd|rd|th)?"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?(?: of)? (?:{_MONTH})|{_DAY})\b"
)
_FACT_PATTERNS = {
    "name": rf"\b(?:I'm|I am|[Cc]all me|(?<!'s )[Nn]ame(?:'s| is)) {_NAME}"
    rf"|\b[Mm]y name(?:'s| is) (?:{_NAME}|{_LOWERCASE_NAME})",
    "order number": r"\b[Oo]rder(?: number| no\.?| id)?(?: is|:)?[ #]+"
    r"(?=[-\w]{3})([-\w]{0,30}?\d[-\w]{0,30})",
    "city": rf"(?:\b(?:[Ll]ive|[Bb]ased|[Oo]ffice|[Mm]oved?|am)|I'm) (?:in|to|from) {_NAME}"
    rf"|\b[Mm]y (?:city|town)(?: is|:) {_NAME}",
    "email": r"(?<![\w.+-])([\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+)",
    "phone number": r"\b(?:[Pp]hone|[Nn]umber|[Cc]all me)[^\d+]{1,15}(\+?\d[\d ()/-]{5,20}\d)",
    "date": _DATE,
}
_OTHER_FACT = re.compile(
    r"\b[Mm]y (?!name\b)([a-z][a-z -]{1,30}?)(?:'s name)?"
    r" (?:is|are)(?: called| named)? ([^.,;!?\n]{1,80})"
)
_SYNONYMS = {
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
    "full name": "name",
}
_QUOTED = re.compile(r"what (?:did|have) i (?:say|said|tell you|told you|mention)\w* about (.+)")
_ASKED = re.compile(
    r"\b(?:what(?:'s| is| was| are| do i call)|how(?:'s| is| are)(?= my [a-z -]{1,30} called\b)"
    r"|do you (?:still )?(?:know|remember)|(?:tell|remind) me(?: of)?|repeat|who(?:'s| is))"
    r"(?: the name of)? (?=my\b)"
)
_MINE = re.compile(
    r"\bmy ([a-z][a-z -]{0,30}?)(?:'s name)?"
    r"(?= (?:and|or|again|is|was|called|named)\b|\s*[,.;!?]|\s*$)"
)
_WHICH_DID_I_SAY = re.compile(
    r"\b(?:what|which) ([a-z][a-z -]{0,30}?) did i (?:say|give|tell|mention)"
)
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[Nn]o\.)\s+(?=\D)|\n+")
_STOP_WORD_LIST = """
    a about am an and are as at be but by can did do does for from had has have i i'd i'll i'm if in
    is it it's its me my no not of on or our please said say so some that the their them then there
    they this to was we were what when where which who will with would you your
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())


async def answer(messages: list[dict[str, object]], session: Session) -> AsyncGenerator[str, None]:
    """Stream the reply word by word."""
    for word in re.findall(r"\s*\S+", reply(messages)):
        yield word
        await asyncio.sleep(PAUSE_SECONDS)


def reply(messages: Sequence[Mapping[str, object]]) -> str:
    """Compute the reply; the same messages always give the same reply."""
    if recalled := recall(messages):
        return recalled
    last = users_texts(messages)[-1]
    question = _lowered(last)
    if stated := facts([last]):
        return _confirmed(stated)
    if re.match(r"(?:hi|hello|hey|good (?:morning|day|evening))\b", question):
        return "Hello! Tell me something about yourself, and ask me about it later."
    if question.rstrip().endswith("?"):
        return (
            "I don't know that. I'm the demo model: without a network, I know only what you "
            "tell me here. Try *What did I say about …?*"
        )
    return "I see. I keep that in mind; ask me about it whenever you like."


def recall(messages: Sequence[Mapping[str, object]]) -> str | None:
    """Answer a question about earlier messages; return None if the last one is none."""
    *texts, last = users_texts(messages)
    question = _lowered(last)
    if found := _QUOTED.search(question):
        return _quote(found[1], texts)
    if asked := list(_asked(question)):
        known = facts([*texts, last])
        return " ".join(_recalled(name, known) for name in dict.fromkeys(asked))
    return None


def users_texts(messages: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the texts of the user's messages."""
    return [text_of(m["content"]) for m in messages if m["role"] == "user"]


def facts(texts: Sequence[str]) -> dict[str, str]:
    """Return the facts that the user stated, each with its newest value."""
    known: dict[str, str] = {}
    for sentence in _statements(texts):
        straight = sentence.replace("\u2019", "'")
        for found in _OTHER_FACT.finditer(straight):
            known[_canonical(found[1])] = found[2].strip()
        for name, pattern in _FACT_PATTERNS.items():
            for found in re.finditer(pattern, straight):
                known[name] = next(filter(None, found.groups()))
    return known


def sentences(text: str) -> list[str]:
    """Split a text into sentences, unchanged."""
    return list(filter(None, _SENTENCE_END.split(text.strip())))


def keywords(text: str) -> set[str]:
    """Return the lowercase words without stop words and without plural s."""
    words = re.findall(r"\w+(?:['-]\w+)*", _lowered(text))
    return {re.sub(r"(?<!s)s$", "", word) for word in words if word not in _STOP_WORDS}


def _quote(topic: str, texts: Sequence[str]) -> str:
    """Quote the newest of the sentences that share most keywords with the topic."""
    wanted = keywords(topic)
    best, most = "", 0
    for sentence in _statements(texts):
        shared = len(wanted & keywords(sentence))
        if shared and shared >= most:
            best, most = sentence, shared
    if best:
        return f'You said: "{best}"'
    return "I don't know: you haven't told me anything about that here."


def _asked(question: str) -> Iterator[str]:
    """Yield the names of the facts that a question asks for."""
    if "who am i" in question:
        yield "name"
    if "where do i live" in question:
        yield "city"
    for found in _WHICH_DID_I_SAY.finditer(question):
        yield _canonical(found[1])
    if opened := _ASKED.search(question):
        for found in _MINE.finditer(question, opened.start()):
            yield _canonical(found[1])


def _statements(texts: Sequence[str]) -> Iterator[str]:
    """Yield the sentences that are not questions about earlier messages."""
    for text in texts:
        for sentence in sentences(text):
            question = _lowered(sentence)
            if not _QUOTED.search(question) and not any(_asked(question)):
                yield sentence


def _lowered(text: str) -> str:
    return text.lower().replace("\u2019", "'")


def _canonical(name: str) -> str:
    return _SYNONYMS.get(name, name)


def _recalled(name: str, known: Mapping[str, str]) -> str:
    if name in known:
        return f"Your {name} is **{known[name]}**."
    return f"I don't know your {name} yet; you haven't told me here."


def _confirmed(stated: Mapping[str, str]) -> str:
    rest = [f"your {name} is **{value}**" for name, value in stated.items() if name != "name"]
    greeting = f"Nice to meet you, **{stated['name']}**. " if "name" in stated else ""
    if not rest:
        return f"{greeting}I'll remember your name."
    return f"{greeting}I'll remember: {', '.join(rest)}."
