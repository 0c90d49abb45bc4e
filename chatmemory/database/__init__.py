"""Write to the database: connections, locks, inserts, retries, threads, signals after commits."""
