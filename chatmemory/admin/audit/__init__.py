"""The audit in the admin: its entries, its verification and its head."""
