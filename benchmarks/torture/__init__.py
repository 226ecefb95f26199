"""Torture: many hard cases, and laws that every one of them must obey.

Each module that is a part defines `run(size: Size) -> list[Count]`; `__main__.py` has the list of parts.
"""
