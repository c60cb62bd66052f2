"""How often intervals of identified parameters hold the planted value."""
