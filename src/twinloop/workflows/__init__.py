"""Run the commands: one package per command, with its steps and its report. Algorithms are in other packages."""
