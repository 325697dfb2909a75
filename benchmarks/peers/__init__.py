"""Other projects' file tiers, each in an environment of its own, measured in the same run as ours."""
