"""Programs that measure or torture the app, with their own tests beside them."""
