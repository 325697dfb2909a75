"""The `hicache` command: data on stdout, log and progress on stderr, exit codes as in `exit_codes`."""
