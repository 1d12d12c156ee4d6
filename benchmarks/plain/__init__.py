"""The field's plain formulations, slow and obvious: benchmarks measure against them, and tests compare with them."""
