"""The benchmark: `make bench`."""
