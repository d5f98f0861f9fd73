"""A commit beside the working tree, in turns and in one run."""
