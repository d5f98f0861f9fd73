"""The Model Context Protocol both ways: our tools for its clients, the tools of its servers for us."""
