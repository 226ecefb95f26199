"""Mercer with default parameters next to other libraries with theirs."""
