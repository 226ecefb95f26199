"""From the user's rows to a problem that is ready to be trained on: inputs, kernel, ridge, plan."""
