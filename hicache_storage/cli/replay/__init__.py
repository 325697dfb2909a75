"""`hicache replay`: a request trace through the tiers, without a model."""
