"""Define the commands of ``twinloop``; one dataclass per command gives its settings, its flags and its help."""
