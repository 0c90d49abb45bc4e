"""Daily numbers that outlive the rows they count, and records of maintenance."""
