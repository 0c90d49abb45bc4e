"""An account model beside AUTH_USER_MODEL, as a host may have one for devices. It has no table."""

from __future__ import annotations

from django.contrib.auth.base_user import AbstractBaseUser
from django.test.utils import isolate_apps

with isolate_apps():

    class Device(AbstractBaseUser):
        """An account whose primary key may also be that of a user."""

        USERNAME_FIELD = "id"

        class Meta:
            app_label = "devices"
