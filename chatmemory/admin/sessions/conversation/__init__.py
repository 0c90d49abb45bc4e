"""The page of a session: its conversation, its facts, and what operators do with both."""
