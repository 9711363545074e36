"""Process 2: one wrapped agent's session: events in, commands out (see session, driver)."""
