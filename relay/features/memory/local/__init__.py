"""The store: one SQLite file for each place, full text, vectors where there are any."""
