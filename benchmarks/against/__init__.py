"""Compares a commit with the working tree, in turns and in one run."""
