"""Implement the commands of the ``twinloop`` command line, in one package per command or group of commands.

Each package has the requests (the flags of its commands), the steps of a command and its report. The algorithms are in
other packages.
"""
