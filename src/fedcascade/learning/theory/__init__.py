"""The paper's bounds in numbers, as it prints them and as we derive them. ln is natural; log2 is to the base 2."""
