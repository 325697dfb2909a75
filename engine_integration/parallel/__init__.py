"""What ranks must decide alike: groups of ranks, and the one module of collectives."""
