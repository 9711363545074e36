"""Library: what a person looks at (console, web page), and the MCP server; the broker's clients."""
