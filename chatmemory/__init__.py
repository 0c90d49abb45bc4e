"""Durable chat memory for Django."""
