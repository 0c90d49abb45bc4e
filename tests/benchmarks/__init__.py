"""Benchmarks. Each has its own make target."""
