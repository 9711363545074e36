"""Library, pure but for the emulator: a terminal's bytes in, source events (lines, pauses) out."""
