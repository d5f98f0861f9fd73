"""The workspace of a call: what of the file system a tool may open, write or delete, and what it may not.

Whatever takes a path from a tool ends in `confinement`: it alone decides what lies inside.
"""
