"""Access control: actors, addresses, logins, tickets and rate limits."""
