"""The chat pages: a person's own sessions, and one of them."""
