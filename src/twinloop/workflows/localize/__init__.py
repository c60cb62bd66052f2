"""Run ``twinloop localize``: train localizers, test them on real photos, adapt them, and give them a policy."""
