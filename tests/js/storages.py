"""A static files storage that also hashes the names of imported modules."""

from __future__ import annotations

from django.contrib.staticfiles.storage import ManifestStaticFilesStorage


class HashedModulesStorage(ManifestStaticFilesStorage):
    """The storage from Django's documentation of `support_js_module_import_aggregation`."""

    support_js_module_import_aggregation = True
