"""What is measured. Each module has the cases of one question; `benchmarks.registry` lists them."""
