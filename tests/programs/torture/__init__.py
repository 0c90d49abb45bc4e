"""Cause real faults of real servers; compare what clients saw with what is stored.

`make torture`, or `python -m tests.programs.torture --plan kill --seed 7`. docs/reasons/torture.md
describes the plans.
"""
