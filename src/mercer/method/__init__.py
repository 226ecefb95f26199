"""The paper, in its order."""
