"""The command line; the only folder that delays imports, to start fast."""
