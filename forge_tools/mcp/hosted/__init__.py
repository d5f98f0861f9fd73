"""MCP servers of others: what a worker starts or reaches so that their tools are tools of its own."""
