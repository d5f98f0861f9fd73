"""What happens around a call besides running it, one concern a file: a `Middleware`, and its line in the list of `workers/worker.py`."""
