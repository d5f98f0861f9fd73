"""What a process can reach, decided by the kernel: one file a mechanism, by ctypes alone. Nothing here knows of tools or calls.

What the machine refuses is an OSError; the docstrings below do not repeat that.
"""
