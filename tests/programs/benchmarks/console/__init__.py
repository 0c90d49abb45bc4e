"""The operator's console at scale: create data, and measure each page of the admin."""
