"""Where a user begins: `templates` are folders that run as they are."""
