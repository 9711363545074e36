"""Library: the features, a folder each; deleting one leaves everything else at work."""
