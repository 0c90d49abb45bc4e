"""The benchmark: `manage.py chatmemory_bench`."""
