"""Clients as nodes of a Flower federation."""
