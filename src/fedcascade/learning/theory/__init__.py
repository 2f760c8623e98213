"""The paper's bounds in numbers, as printed and as we derive them."""
