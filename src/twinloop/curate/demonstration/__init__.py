"""Checks of demonstrations: smoothness, path, hesitation, gripper, actions, copies and outcome."""
