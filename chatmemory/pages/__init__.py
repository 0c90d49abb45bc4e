"""The chat pages: the list of the user's sessions, and one session."""
