"""Random valid problems: descriptions, what they build, plain NumPy answers, and invariants of every run."""
