"""relay's tools as an MCP server, for programs that speak the Model Context Protocol."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "mcp": ("mcp_verb", "serve relay's tools to programs that speak MCP"),
}
GROUP = "set-up"
