"""Kernels for a GPU, written in Pallas for its Triton backend; imported where one is at work, and by their tests."""
