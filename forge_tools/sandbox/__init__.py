"""What a tool may touch: files of a workspace, and processes that end with their call. Nothing here knows a tool.

What is refused raises a SandboxError, whose sentence and code the caller of the tool gets: no docstring below repeats that.
"""
