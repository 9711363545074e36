"""One wrapped agent's life: sources in; matches, handlers and deliveries out."""
