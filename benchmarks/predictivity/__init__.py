"""Do twins of a real arm predict how its controllers do? The pendubot of RealAIGym, whose rollouts are public."""
