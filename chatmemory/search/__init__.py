"""Search in what was said: an optional app whose rows are derived from the messages."""
