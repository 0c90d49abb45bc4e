"""Redact: find a text in everything that is stored, and delete the content of messages."""
