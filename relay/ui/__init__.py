"""Library: what a person looks at: the console, the web page, the MCP server. Clients of the broker."""
