"""Processes of tools: what they see, how they start, what they write, and how all of them end."""
