"""The REST API: the sessions and messages of the signed-in user, as JSON."""
