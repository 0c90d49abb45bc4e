"""`python -m tests.programs.partitions`: what partitions of the tables of rows cost."""
