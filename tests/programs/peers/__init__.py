"""Run the contract on the memories of other packages, each in its own environment.

`make peers` creates the environments, runs all tests, and prints the scoreboard.
"""
