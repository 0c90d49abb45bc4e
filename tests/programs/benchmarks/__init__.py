"""Benchmarks of single parts: `python -m tests.programs.benchmarks.NAME`."""
