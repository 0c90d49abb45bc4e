"""Chat memory for Django that cannot forget."""
