"""How large the house is, and how far one call has to walk in it."""
