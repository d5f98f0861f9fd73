"""What calls and heartbeats wait for: hot statements in natural batches, and all else that moves an execution."""
