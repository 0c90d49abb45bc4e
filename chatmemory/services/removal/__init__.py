"""Hide, delete and restore history: trim, clear, purge, redact, erase, retain, vacuum."""
