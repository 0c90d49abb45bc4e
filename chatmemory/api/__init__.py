"""The REST API: a signed-in person's own sessions and messages, in JSON alone."""
