"""What calls and heartbeats wait for: hot statements in natural batches, and whatever else moves an execution."""
