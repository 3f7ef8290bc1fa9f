"""Clients as Ray actors."""
