"""The demo: a real stack at work, which asserts what it prints."""
