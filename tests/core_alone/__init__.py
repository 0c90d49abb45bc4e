"""A project without the optional apps."""
