"""Tables: files of rows, and how their columns become features and targets."""
