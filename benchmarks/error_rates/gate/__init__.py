"""How often the gate and the stages err, and how many trials they take: by simulation, a table each."""
