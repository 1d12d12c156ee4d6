"""Features of own images, their store, exact and approximate search."""
