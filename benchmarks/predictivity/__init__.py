"""Measure how well twins of a real arm (RealAIGym's pendubot) predict the success of its controllers."""
