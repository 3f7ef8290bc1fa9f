"""All clients in one compiled program."""
