"""Tests of the optional app that imports chats of other products."""
