"""The commands of the client: words, flags, output and exit statuses of the A2A command line."""
