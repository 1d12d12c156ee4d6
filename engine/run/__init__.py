"""The folder of a run: its files, its record, its checkpoints, and how it is resumed."""
