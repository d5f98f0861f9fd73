"""What a worker does beside its calls, one duty a file: a `Service`, and its line in the list of `workers/worker.py`."""
