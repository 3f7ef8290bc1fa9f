"""Settings shared by all tests: one CPU platform, and no progress bars."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
