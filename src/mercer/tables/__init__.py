"""Files of rows, and how they become numbers."""
