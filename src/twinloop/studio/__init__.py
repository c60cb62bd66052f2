"""Show a workspace in a browser: episodes, runs and decisions; `twinloop studio` starts it."""
