"""The runner beside other task queues, each in its own environment; figures, not tests."""
