"""Library: the verbs of the command line, one module per group; clients of the broker."""
