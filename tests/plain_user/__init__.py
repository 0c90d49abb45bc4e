"""A host whose user model has no `is_active` column; `scenario` runs in its own process."""
