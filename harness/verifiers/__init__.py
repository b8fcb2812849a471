"""Backends that score branches, behind one small protocol."""
