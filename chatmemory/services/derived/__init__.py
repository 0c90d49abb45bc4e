"""Derived rows: what other apps make from messages."""
