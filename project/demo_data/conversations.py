"""All example conversations: who asked what, when, and how it ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import cycle
from random import Random

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User

from chatmemory import errors
from chatmemory.models import DatabaseNow, Visitor
from chatmemory.services import user_scope
from project.demo_data.rows import Conversation, Person
from project.demo_data.texts import TOPICS, Dialogue, Exchange, Language

DAYS = 42
COUNT = 290
"""Conversations besides the special ones."""
RECENT = 12
"""Of these, those of the last day."""
VISITORS = 4
"""Visitors of each language."""
LONG = 2_000
"""Messages of the longest conversation."""
LONG_A_DAY = 22
"""Its turns of a day, about."""
ENDS = (-9, 1, 2, 5)
"""The days until some conversations expire."""
MIN_AGE = timedelta(hours=1.5)
"""All other conversations are over by then, so that the statistics count them."""

NAMES: Mapping[str, Sequence[str]] = {
    "en": ("alex", "casey", "jamie", "robin", "sam", "taylor"),
    "de": ("jona", "kim", "lou", "mika", "sascha", "toni"),
    "es": ("andrea", "ariel", "cruz", "luz", "noa", "rio"),
    "fr": ("camille", "charlie", "dominique", "maxime", "morgan", "noor"),
}
"""First names of people of any gender, by language."""

WEIGHTS = (5, 4, 3, 3, 2, 2, 1)
"""How frequent the topics are."""
HOURS = (1, 0, 0, 0, 0, 1, 2, 4, 7, 10, 12, 11, 9, 9, 10, 10, 9, 9, 8, 8, 7, 6, 4, 2)
WEEKEND = 0.45
"""How many conversations begin on a day of the weekend, compared with another day."""

FAILURES: Sequence[type[errors.ModelError]] = (
    errors.ModelTimeout,
    errors.ModelUnavailable,
    errors.ModelRateLimited,
    errors.Blocked,
    errors.ModelAccessDenied,
    errors.ContextTooLong,
    errors.ResponderError,
)
STREAMED = (errors.ModelTimeout.code, errors.ModelUnavailable.code)
"""The failures that can come in the middle of a reply."""


def make_people(rng: Random) -> list[Person]:
    """Store the users, who cannot sign in, and the visitors."""
    password = make_password(None)
    users = [
        (code, User(username=f"{name}@example.org", first_name=name.title(), password=password))
        for code, names in NAMES.items()
        for name in names
    ]
    User.objects.bulk_create([user for _, user in users], ignore_conflicts=True)
    names = [user.username for _, user in users]
    stored = {user.username: user for user in User.objects.filter(username__in=names)}
    people = []
    for code, new in users:
        user = stored[new.username]
        people.append(Person(scope=user_scope(user), owner_id=user.pk, language=code))
    return [*people, *_make_visitors(rng)]


def _make_visitors(rng: Random) -> list[Person]:
    # A digest of nothing: the credential of a visitor must not be in the source.
    codes = [code for code in NAMES for _ in range(VISITORS)]
    visitors = [
        Visitor(digest=rng.randbytes(32).hex(), ends_at=DatabaseNow() + timedelta(days=30))
        for _ in codes
    ]
    Visitor.objects.bulk_create(visitors)
    return [
        Person(scope=visitor.scope, owner_id=None, language=code)
        for visitor, code in zip(visitors, codes, strict=True)
    ]


def write_conversations(people: Sequence[Person], now: datetime, rng: Random) -> list[Conversation]:
    """Write all conversations, the oldest first."""
    writer = _Writer(people, now, rng)
    written = [*writer.usual(), writer.long(), *writer.ending(), *writer.empty()]
    return [*sorted(written, key=lambda one: one.session.created_at), writer.live()]


class _Writer:
    def __init__(self, people: Sequence[Person], now: datetime, rng: Random) -> None:
        self._people, self._now, self._rng = people, now, rng
        self._languages = {code: Language(code) for code in NAMES}
        self._failures = cycle(FAILURES)

    def usual(self) -> Iterator[Conversation]:
        """Write the conversations that a shop has every day."""
        for number, moment in enumerate(self._moments()):
            is_recent = number >= COUNT - RECENT
            if number % 13 == 4 or (is_recent and number % 4 == 0):
                problem = next(self._failures)
                yield self._problem(moment, problem.code, has_retry=number % 3 == 0)
            elif number % 17 == 6:
                yield self._problem(moment, "", has_retry=number % 2 == 0)
            else:
                yield self._talk(moment, may_return=not is_recent)

    def long(self) -> Conversation:
        """Write the conversation of an office, about many orders."""
        person, day = self._people[0], 0
        first_day = self._now - timedelta(days=DAYS)
        conversation = self._open(
            person, "office", "Orders of our office", first_day.replace(hour=8)
        )
        while (left := LONG - conversation.session.last_seq) > 0:
            for exchange in self._dialogue(person).exchanges:
                # A call of a tool is two more messages.
                conversation.answer(replace(exchange, tool=None) if left < 20 else exchange)
                self._rate(conversation)
                conversation.wait(20, 110)
                if conversation.session.last_seq == LONG:
                    break
            if len(conversation.turns) // LONG_A_DAY > day:
                day += 1
                morning = conversation.clock.replace(hour=8, minute=self._rng.randrange(60))
                conversation.clock = morning + timedelta(days=1)
        return conversation

    def ending(self) -> Iterator[Conversation]:
        """Write conversations that have expired, or will soon."""
        for days in ENDS:
            moment = self._now - timedelta(days=20 - days, hours=self._rng.randrange(6))
            conversation = self._talk(moment, may_return=False)
            conversation.session.expires_at = self._now + timedelta(days=days)
            yield conversation

    def empty(self) -> Iterator[Conversation]:
        """Open conversations in which no message was sent."""
        for hours in (5, 30, 75, 160, 400):
            yield self._open(self._person(), "", "", self._now - timedelta(hours=hours))

    def live(self) -> Conversation:
        """Write a conversation with a reply that runs, and a message that waits."""
        person = next(one for one in self._people if one.language == "en" and one.owner_id)
        language, rng = self._languages[person.language], self._rng
        dialogue = language.dialogue("status", rng)
        moment = self._now - timedelta(minutes=4)
        conversation = self._open(person, "status", dialogue.title or "Two orders", moment)
        conversation.answer(dialogue.exchanges[0])
        conversation.clock = self._now - timedelta(seconds=50)
        conversation.run(
            dialogue.exchanges[1].asked, partial=language.phrase("typing", rng, dialogue.slots)
        )
        conversation.wait(5, 20)
        conversation.queue(language.phrase("queued", rng))
        return conversation

    def _moments(self) -> list[datetime]:
        """Return when the usual conversations begin, by the habits of people."""
        rng, latest = self._rng, self._now - MIN_AGE
        recent = [latest - timedelta(hours=rng.uniform(0, 20)) for _ in range(RECENT)]
        moments: list[datetime] = []
        while len(moments) < COUNT - RECENT:
            day = self._now - timedelta(days=int(DAYS * rng.random() ** 1.2) + 1)
            if day.weekday() >= 5 and rng.random() > WEEKEND:
                continue
            [hour] = rng.choices(range(24), HOURS)
            moment = day.replace(hour=hour, minute=rng.randrange(60), second=rng.randrange(60))
            if moment < latest - timedelta(hours=20):
                moments.append(moment)
        return [*sorted(moments), *sorted(recent)]

    def _person(self) -> Person:
        # Some ask much more often than others.
        return self._people[int(len(self._people) * self._rng.random() ** 1.4)]

    def _dialogue(self, person: Person, *, without: Collection[str] = ()) -> Dialogue:
        weights = [
            0 if topic in without else weight for topic, weight in zip(TOPICS, WEIGHTS, strict=True)
        ]
        [topic] = self._rng.choices(TOPICS, weights)
        return self._languages[person.language].dialogue(topic, self._rng)

    def _open(self, person: Person, topic: str, title: str, moment: datetime) -> Conversation:
        version = 2 if moment > self._now - timedelta(days=18) else 1
        names = (f"example-large-{version}", f"example-small-{version}", "example-mini")
        [model] = self._rng.choices(names, (6, 3, 1))
        conversation = Conversation(
            person, title=title, started_at=moment, model=model, rng=self._rng
        )
        conversation.session.metadata["topic"] = topic
        return conversation

    def _talk(self, moment: datetime, *, may_return: bool) -> Conversation:
        """Write a conversation about one topic, or several."""
        rng, person = self._rng, self._person()
        dialogue = self._dialogue(person)
        conversation = self._open(person, dialogue.topic, dialogue.title, moment)
        topics = [dialogue.topic]
        [count] = rng.choices((1, 2, 5), (16, 4, 1))
        for number in range(count):
            if number:
                dialogue = self._dialogue(person, without=topics)
                topics.append(dialogue.topic)
                self._pause(conversation, may_return=may_return)
            for exchange in dialogue.exchanges[: rng.randint(1, 4)]:
                self._answer(conversation, exchange)
        return conversation

    def _pause(self, conversation: Conversation, *, may_return: bool) -> None:
        """Let some hours pass, or a minute."""
        later = conversation.clock + timedelta(hours=self._rng.uniform(2, 30))
        if may_return and self._rng.random() < 0.4 and later < self._now - 2 * MIN_AGE:
            conversation.clock = later
        conversation.wait(20, 90)

    def _answer(self, conversation: Conversation, exchange: Exchange) -> None:
        conversation.answer(exchange)
        self._rate(conversation)
        conversation.wait(15, 150)

    def _rate(self, conversation: Conversation) -> None:
        if self._rng.random() < 0.11:
            name, value = ("good", 1) if self._rng.random() < 0.65 else ("bad", -1)
            language = self._languages[conversation.person.language]
            conversation.rate(value, language.phrase(name, self._rng))

    def _problem(self, moment: datetime, error: str, *, has_retry: bool) -> Conversation:
        """Write a conversation with a failed reply, or an interrupted one without an error."""
        rng, person = self._rng, self._person()
        dialogue = self._dialogue(person)
        conversation = self._open(person, dialogue.topic, dialogue.title, moment)
        first, *others = dialogue.exchanges
        self._answer(conversation, first)
        asked, language = others[0], self._languages[person.language]
        if error == errors.Blocked.code:
            asked = replace(asked, asked=language.phrase("blocked", rng))
        if error == errors.ContextTooLong.code:
            asked = replace(asked, asked=language.pasted_orders(rng))
        is_streamed = not error or (error in STREAMED and rng.random() < 0.5)
        part = rng.uniform(0.3, 0.7) if is_streamed else 0.0
        status = "failed" if error else "interrupted"
        conversation.answer(asked, status=status, error=error, part=part)
        conversation.wait(20, 90)
        for exchange in others if has_retry else ():
            self._answer(conversation, exchange)
        return conversation
