"""SDTPS inside a DeMo checkout, whose code stays as it is (docs/plug_in.md)."""
