"""The command line, one file per command. Errors are one line; exit 2 is bad input, 1 a refusal."""
