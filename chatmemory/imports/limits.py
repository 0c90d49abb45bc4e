"""The limits of a file, so that no file can fill the memory."""

from __future__ import annotations

MAX_CONVERSATION = 32 * 2**20
"""Maximum size of one conversation, in bytes as it is held in memory."""

MAX_STRING = 16 * 2**20
"""Maximum length of one JSON string, in bytes of the file."""

MAX_DEPTH = 10_000
"""Maximum nesting of a file. LibreChat nests each reply in its question."""

MAX_MESSAGES = 20_000
"""Maximum number of messages of one conversation."""

MAX_OPEN_CALLS = 1_000
"""Maximum number of tool calls of one conversation that wait for their results at a time."""

MAX_VERSIONS = 100
"""Maximum number of sessions that are made from conversations with one id."""

MAX_MEMBERS = 65_000
"""Maximum number of files in a ZIP archive."""

MAX_RATIO = 200
"""Maximum size of a file in a ZIP archive, as a multiple of its compressed size."""
