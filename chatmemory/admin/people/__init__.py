"""Persons in the admin: what is stored of them, its export and its erasure."""
