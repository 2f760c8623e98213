"""The operator's page: feed, pages, sessions, assets."""
