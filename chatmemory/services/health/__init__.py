"""The state of health, for monitors and for people."""
