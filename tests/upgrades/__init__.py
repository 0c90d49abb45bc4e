"""Databases of each release, which the current code upgrades and continues."""
