"""Who takes part, under which id, and what each allows."""
