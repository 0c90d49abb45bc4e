"""What lives in a process: hub, feeds, sweep and channel layer; runner, keeper and drain."""
