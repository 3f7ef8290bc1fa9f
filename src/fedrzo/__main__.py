"""`python -m fedrzo`: the command line, for those whose PATH does not hold it."""

import sys

from fedrzo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
