"""What acts: policies as networks with a contract, saved as safetensors, and the way from observations to commands."""
