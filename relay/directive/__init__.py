"""Library, pure: text to directives, messages to text."""
