"""Plain formulations as in published code: slow references for benchmarks and tests."""
