"""One package per verb: the order of its steps and the sections of its report. No algorithms here."""
