"""One page on what a folder of results holds; it opens offline."""
