"""Slow, obvious versions of the method's formulas, written from their description, to compare the code with."""
