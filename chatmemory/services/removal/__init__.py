"""Hide messages, restore them, put sessions on hold, and delete what was hidden long ago."""
