"""Jobs: an operator's action on one or many sessions, executed in slices by any process."""
