"""Export and import of whole sessions."""
