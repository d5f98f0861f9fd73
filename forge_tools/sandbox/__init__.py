"""What a tool may touch: files of a workspace, and processes that end with their call. Nothing here knows a tool."""
