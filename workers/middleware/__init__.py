"""What happens around a call besides running it, one concern a file: a `Middleware`, listed in `workers/worker.py`."""
