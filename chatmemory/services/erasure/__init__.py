"""Erasure: delete all data of a person, keep a list of erasures, and replay them."""
