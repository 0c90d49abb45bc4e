"""A small optional app with tasks, facts, counters and roles; derived rows are in `tests/shop`."""
