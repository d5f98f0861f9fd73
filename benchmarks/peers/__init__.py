"""The runner beside other task queues, each in an environment of its own; figures, never tests."""
