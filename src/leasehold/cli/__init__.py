"""The command line: gets an App, never a connection."""
