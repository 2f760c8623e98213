"""The dashboard: a page that shows the system at work, live and for any moment before, from the store alone."""
