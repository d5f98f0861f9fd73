"""Runnable examples, for use from a checkout."""
