"""One script per thing that a user does besides training; each explains itself with --help."""
