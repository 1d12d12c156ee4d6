"""Studies of docs/: variants × seeds (`python -m studies.run`), rivals as published, and further measurements."""
