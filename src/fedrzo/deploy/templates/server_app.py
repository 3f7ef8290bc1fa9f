"""What runs in the middle: it walks the method, and never sees data."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

PROBLEM = Path(__file__).with_name("problem.py")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method of problem.py over the nodes that are connected."""
    from fedrzo.deploy.server import serve  # here: Flower loads this file without waiting for JAX

    serve(grid, dict(context.run_config), PROBLEM)
