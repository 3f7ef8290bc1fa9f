"""What the scripts beside this folder share: their command line, clocks, and the longer parts of some of them."""
