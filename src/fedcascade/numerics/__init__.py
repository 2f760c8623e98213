"""Compiled arithmetic: decorators, SIMD helpers, linear algebra, counter-based random streams."""
