"""The arguments of tools, for models: none of them is a scope, a person or another limit."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

BEFORE = "Only messages before this date or time in UTC, such as 2026-05-31."
AFTER = "Only messages from this date or time on, in UTC, such as 2026-05-01."
AROUND = "The number of the message, as in a result of search_memory."

SEARCH_MEMORY = (
    "Search earlier messages by their words, also those that you no longer see. Finds any of the "
    "words, also in other forms. Returns up to 20 messages, the best first, as quotations."
)
READ_MESSAGES = (
    "Read up to 20 messages around one message, in order, such as around a result of search_memory."
)


class SearchMemory(BaseModel):
    """The arguments of `search_memory`."""

    query: str = Field(description="The words to search for, 1 to 500 characters.")
    before: str | None = Field(None, description=BEFORE)
    after: str | None = Field(None, description=AFTER)
    role: Literal["user", "assistant", "tool"] | None = Field(
        None, description="Only messages of this role."
    )


class ReadMessages(BaseModel):
    """The arguments of `read_messages`."""

    around: int = Field(description=AROUND)
    session: str | None = Field(
        None,
        description="The session of the message, as in a result of search_memory; by default this "
        "one.",
    )


def problems_of(error: ValidationError | Any) -> str:
    """Return why arguments are invalid, without their values."""
    problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return "; ".join(problems)
