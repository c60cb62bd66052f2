"""The order of steps: what a command does with the rooms below. No algorithms here."""
