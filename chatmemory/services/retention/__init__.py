"""Retention: remove what is due by age, by rules, or with the owner's account."""
