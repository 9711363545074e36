"""Process 1: ``relay wrap`` itself, which copies bytes between terminals."""
