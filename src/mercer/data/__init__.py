"""Prepared rows: what the kernel sees."""
