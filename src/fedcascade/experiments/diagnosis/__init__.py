"""The paper's assumptions and lemmas, looked for in worlds and runs."""
