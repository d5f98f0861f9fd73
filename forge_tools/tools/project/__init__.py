"""Tools that say what a project is, from its files alone: nothing of it is run."""
