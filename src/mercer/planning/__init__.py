"""What the device offers, and the numbers chosen for it."""
