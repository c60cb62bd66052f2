"""Run ``twinloop tasks``: write a class for the user's own task, and check a task."""
