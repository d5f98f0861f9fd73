"""What a tool may touch: files of a workspace, and processes that end with their call. Nothing here knows a tool.

Refusals raise a SandboxError, whose sentence and code reach the caller of the tool; the docstrings below do not repeat
that.
"""
