"""A static files storage that also hashes the names of imported modules."""

from __future__ import annotations

from django.contrib.staticfiles.storage import ManifestStaticFilesStorage


class HashedModulesStorage(ManifestStaticFilesStorage):
    """The storage that docs/howto/client-js.md recommends."""

    support_js_module_import_aggregation = True
    max_post_process_passes = 20
