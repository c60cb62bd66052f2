"""What a person types. One dataclass per command is its configuration, its flags and its help."""
