"""Real servers under real faults, and a checker that reads what clients saw and what is stored.

`make torture`, or `python -m tests.torture --plan kill --seed 7`; docs/torture.md says what each
plan does.
"""
