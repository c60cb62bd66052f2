"""Labels of episodes by people, rules and models, with their agreement."""
