"""The page of health."""
