"""What lives in a process: hub, sweep and channel layer; runner, keeper and drain."""
