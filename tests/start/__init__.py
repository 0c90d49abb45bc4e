"""The pages of docs/start, followed as they are written."""
