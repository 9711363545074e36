"""Personas: what route functions make of events, and the turns that answer them."""
