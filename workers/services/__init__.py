"""What a worker does besides its calls, one family of duties per file: a `Service`, listed in `workers/worker.py`."""
