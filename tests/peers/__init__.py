"""Run the contract on the memories of other packages, each in its own environment.

`python -m tests.peers` creates the environments, runs all tests, and prints the scoreboard.
"""
