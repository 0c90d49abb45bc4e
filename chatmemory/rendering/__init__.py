"""Convert Markdown to safe HTML, without I/O."""
