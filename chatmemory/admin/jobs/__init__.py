"""The pages on which operators confirm actions, and follow, cancel and undo their jobs."""
