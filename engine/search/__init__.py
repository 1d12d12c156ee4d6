"""Search in a gallery of own images: its index on disk, kept up to date, and the nearest of a query (docs/search.md)."""
