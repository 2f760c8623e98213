"""Our grouping: a hierarchical model of all users. An answer is the posterior of the asker's theta."""
