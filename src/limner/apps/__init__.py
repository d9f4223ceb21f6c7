"""Programs around the core: the command line, the service, and what reads or writes runs and folders for people."""
