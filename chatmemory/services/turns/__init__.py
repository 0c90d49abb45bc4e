"""Turns: admission, claims, progress, endings, versions."""
