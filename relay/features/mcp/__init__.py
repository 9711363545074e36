"""relay's tools as an MCP server, for programs that speak the Model Context Protocol."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "mcp": ("mcp_verb", "relay's tools for programs that speak MCP, as a server"),
}
GROUP = "set-up"
