"""Check robot logs for defects before identification. Each defect is a finding with evidence and a remedy."""
