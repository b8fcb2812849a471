"""Many verifier calls: how far do scores move, and what tolerance follows."""
