"""A host whose user model has no `is_active` column: a process of its own, see `scenario`."""
