"""Run ``twinloop localize``: train localizers, test them on real pictures, adapt them, and give them a policy."""
