"""Where bytes live: one folder per store, one SDK per folder. Chosen by name through the registry."""
