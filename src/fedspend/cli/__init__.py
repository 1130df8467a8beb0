"""The command line, one file per command: it explains in one line, and exits 2 for bad input and 1
for a refusal.
"""
