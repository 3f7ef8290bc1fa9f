"""What knows nothing of optimisation: pytrees, keys, files, extras, compilation, checks of arguments, names of columns."""
