"""Reduction orders, measured: in which tree a kernel really adds, at which shapes.

`fprev` finds the tree of a black box from masks, `positive` that of a sum without negative terms;
`operators` are torch's operators as such boxes, `shapes` the ones that a model uses, `survey` all
of its sums; `fingerprint` holds what was found and `cache` keeps its digests.

Nothing is imported here: records travel without numpy, and torch is loaded only to measure.
"""
