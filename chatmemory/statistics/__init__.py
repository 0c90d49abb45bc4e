"""Statistics: figures of each day that outlive the rows they count. An optional app."""
