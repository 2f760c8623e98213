"""Environment x policy -> Trace."""
