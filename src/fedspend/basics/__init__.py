"""What everything else stands on: names for arrays, whole files, choices, threads."""
