"""What is measured beside the field's plain formulations: run.py makes the tables of docs/performance.md and docs/seps.md."""
