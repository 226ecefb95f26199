"""Kernel, bandwidth and ridge by leave-one-out error."""
