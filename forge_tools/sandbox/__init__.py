"""What a tool may touch: files under one root, and processes that end with their call. Nothing here knows a tool."""
