"""Groups that agents and people write to, and who hears of whose coming and going."""
