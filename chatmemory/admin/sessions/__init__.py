"""The sessions in the admin: their list, their pages and what operators do with them."""
