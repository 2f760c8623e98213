"""Our grouping: one hierarchical model of all users, whose answers are posteriors of the asker's theta."""
