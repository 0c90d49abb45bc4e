"""Recall benchmark: the share of stated facts that reach the model after the servers are killed."""
