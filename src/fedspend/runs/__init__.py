"""A run from its first file to its last: set up, train, keep, go on after a kill, compare."""
