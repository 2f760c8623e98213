"""The operator's dashboard: feed, routes, sessions, assets."""
