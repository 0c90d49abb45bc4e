"""The audit: entries, their authentication codes and seals, and what operators read."""
