"""An app of a host with rows that are made from messages. Only tests install it."""
