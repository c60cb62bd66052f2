"""Label episodes by rules, read and write label files, and measure the agreement of people, rules and models."""
