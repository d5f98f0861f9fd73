"""The demo: it runs a real stack and asserts what it prints."""
