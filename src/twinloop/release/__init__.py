"""From a candidate to the champion and back: registry, gate, stages, safety envelope, monitor."""
