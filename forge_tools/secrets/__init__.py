"""Keeps secrets secret: which parts of a call are hidden, how they are encrypted for workers, and how texts are scrubbed.

Modules here may import only records and errors: they run no call, read no row and know no tool.
"""
