"""When each maintenance task last ran, and when it is due again."""
