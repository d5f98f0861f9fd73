"""MCP servers of others: a worker starts or connects to them and offers their tools as its own."""
