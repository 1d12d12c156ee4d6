"""Studies: variants × seeds of a configuration, and the tables that compare them."""
