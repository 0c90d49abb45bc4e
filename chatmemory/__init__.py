"""Durable chat memory for Django."""

__version__ = "0.1.0"
