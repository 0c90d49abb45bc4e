"""A project whose REST API accepts tokens, also from pages of other origins."""
