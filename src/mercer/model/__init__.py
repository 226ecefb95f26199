"""The trained function."""
