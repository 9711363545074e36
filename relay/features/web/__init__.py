"""The agents and their messages as a page in the browser."""

#: name -> (module of this package, what the verb does).
VERBS = {
    "web": ("web_verb", "show the agents and their messages in your browser"),
}
GROUP = "more views"
