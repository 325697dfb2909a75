"""What runs inside the harness: the physical limits, this project, and the far end of a peer's pipe."""
