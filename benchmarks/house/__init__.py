"""How large the code base is, and how much of it one call runs through."""
