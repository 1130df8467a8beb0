"""Training runs from start to end: set up, train, store, resume after a kill, compare."""
