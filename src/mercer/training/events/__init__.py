"""What happens beside training: console, callbacks, interrupts, checkpoints."""
