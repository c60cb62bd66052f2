"""Run ``twinloop robot``: write a class for the user's own robot or simulator, and check a robot."""
