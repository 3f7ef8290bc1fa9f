"""Engines whose clients are reached by messages: what is sent, how it is read, what a node keeps."""
