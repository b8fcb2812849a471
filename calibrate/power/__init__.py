"""Planted faults: what a tolerance finds, what it calls a fault wrongly, and what other rules do.

Replicas differ in secret from the committed build and report what they were asked for; honest ones
do not. Every rule judges the same commits and the same replays.
"""
