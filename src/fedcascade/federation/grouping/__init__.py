"""Groupings: whose statistics are pooled for whom."""
