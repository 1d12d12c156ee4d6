"""Features of own images, their store, search."""
