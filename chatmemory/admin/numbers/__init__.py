"""The pages of numbers and of health."""
