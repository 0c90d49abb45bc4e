"""Find and repair damaged sessions and rows."""
