"""What people, rules and models say of episodes, side by side, with their agreement."""
