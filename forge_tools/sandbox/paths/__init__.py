"""The workspace of a call: what a tool may open, write or delete in the file system, and what it may not.

Every path from a tool ends up in `confinement`: only it decides what lies inside.
"""
