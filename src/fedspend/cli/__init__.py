"""The command line: one file per command. The library raises; this explains in one line and exits 2 for bad input, 1 for a refusal."""
