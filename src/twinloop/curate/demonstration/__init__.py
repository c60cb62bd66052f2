"""Checks of how a demonstration was given: smoothness, path, hesitation, gripper, actions, copies, outcome."""
