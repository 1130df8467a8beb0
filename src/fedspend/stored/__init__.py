"""A run on disk: which files it has (`files`), and how they are read (`run`)."""
