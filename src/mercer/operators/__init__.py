"""Products with the kernel matrix."""
