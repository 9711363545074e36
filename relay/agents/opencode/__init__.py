"""opencode: started with its server on a loopback port, heard and reached through that server."""
