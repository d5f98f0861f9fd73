"""The way to workers and back. Only this package and `workers` know which broker there is and that Celery reads it."""
