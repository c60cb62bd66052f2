"""The command line. One dataclass per command defines its configuration, its flags and its help."""
