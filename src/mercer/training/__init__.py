"""Epochs over steps, watched, guarded and stopped early."""
