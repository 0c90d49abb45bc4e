"""The settings of this app: keys of `CHATMEMORY`."""

from __future__ import annotations

from chatmemory.conf import Setting, Settings


class SearchSettings(Settings):
    """The settings of `chatmemory.search` with their defaults."""

    SEARCH_LANGUAGE = Setting("english")
    """The language by whose rules a search also finds other forms of a word, such as `invoices` for
    `invoice`: a name that Snowball has. Other languages, and all without the extra `search`, use
    the first five characters of each word. After a change `chatmemory_search` indexes again."""

    SEARCHES_PER_MINUTE = Setting[int | str | None](30)
    """Maximum searches of one person per minute; None for no limit, or the dotted path of a
    function from the Actor to one of these. Counted in Django's cache."""

    RECALL_TOKENS = Setting(0)
    """How many tokens of older messages a turn adds to the model's input, directly before the
    question: those that left the window and fit the question best. 0 adds none. They come on top of
    WINDOW_TOKENS."""

    RECALL_REACH = Setting("session")
    """Where RECALL_TOKENS looks for them: `session`, or `scope` for all chats of the same person.
    In the scope `server` it is always the session."""


settings = SearchSettings()
