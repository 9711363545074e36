"""What a program in a wrapper must not notice: each behaviour, direct and wrapped, compared."""
