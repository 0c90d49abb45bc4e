"""A host's app that is named as the optional app of chatmemory."""
