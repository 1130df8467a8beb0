"""Who takes part, under which id, and with what budget."""
