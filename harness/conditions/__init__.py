"""What is controlled in a verifier call, and restored afterwards."""
