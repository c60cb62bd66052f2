"""Success of policies on virtual robots, by what they were trained on."""
