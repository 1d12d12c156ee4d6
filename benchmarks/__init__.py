"""Measurements of speed and memory relative to the plain formulations of benchmarks/plain."""
