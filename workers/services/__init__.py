"""What a worker does beside its calls, one family of duties a file: a `Service`, and its line in the list of `workers/worker.py`."""
