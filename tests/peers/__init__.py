"""Other people's memories, held to the contract, each in an environment of its own.

`python -m tests.peers` makes the environments, runs everything, and prints the scoreboard.
"""
