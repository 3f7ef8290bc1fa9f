"""Benchmarks that anybody can run: `fedrzo bench NAME`, one module each."""
