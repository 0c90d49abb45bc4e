"""A user model without a password, which defines activity by other data."""

from __future__ import annotations

from django.db import models


class Member(models.Model):
    name = models.CharField(max_length=50, unique=True)
    left_at = models.DateTimeField(null=True)
    has_session = models.BooleanField(default=False)

    USERNAME_FIELD = "name"
    REQUIRED_FIELDS = ()
    is_authenticated = True
    is_anonymous = False

    def __str__(self):
        return self.name

    def get_username(self):
        return self.name

    @property
    def is_active(self):
        return self.left_at is None
