"""What everything else builds on: array types, atomic files, named choices, threads."""
