"""Tools that describe a project from its files; they run nothing of it."""
