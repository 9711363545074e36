"""mcp."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "mcp": ("mcp_verb", "relay's tools for programs that speak MCP, as a server"),
}
