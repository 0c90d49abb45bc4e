"""Pages of tables in place of a list of rows; optional apps add theirs."""
