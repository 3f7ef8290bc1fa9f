"""XLA flags with which programs compile quickly: `python tests/quick.py` prints those that the installed JAX knows.

Most of a test's time is compilation, so that LLVM need not try hard. JAX ends at the first flag that it does not know; flags come
and go with its versions.
"""

import os
import subprocess
import sys

FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    # These passes look through all loops again and again, of which a round has dozens; what they gain is time to run.
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops,while-loop-constant-sinking",
)


def usable(flags: tuple[str, ...] = FLAGS) -> str:
    """Return the flags that this JAX takes, as the value of XLA_FLAGS."""
    left = list(flags)
    while left:
        environment = os.environ | {"XLA_FLAGS": " ".join(left), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", "import jax; jax.devices()"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode == 0:
            break
        known = [flag for flag in left if flag not in done.stderr]
        if known == left:
            raise RuntimeError(f"JAX does not start: {done.stderr[-300:]}")
        left = known
    return " ".join(left)


if __name__ == "__main__":
    print(usable())
