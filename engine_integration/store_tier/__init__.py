"""L3 as the tiers see it: pages that are probed, fetched and written by threads of their own, in agreement with all ranks."""
