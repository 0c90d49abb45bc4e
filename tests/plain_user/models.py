"""A user model that defines activity by other data."""

from __future__ import annotations

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models


class Member(AbstractBaseUser):
    name = models.CharField(max_length=50, unique=True)
    left_at = models.DateTimeField(null=True)
    has_session = models.BooleanField(default=False)

    objects = BaseUserManager()

    USERNAME_FIELD = "name"

    def __str__(self):
        return self.name

    @property
    def is_active(self):
        return self.left_at is None
