"""Groupings: which agents share their statistics."""
