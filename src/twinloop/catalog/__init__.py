"""Where every episode is known: the workspace folder, its catalog, frozen datasets, labels, and queries over all."""
