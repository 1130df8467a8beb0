"""Pages that a browser shows, from a server on this machine: the planner."""
