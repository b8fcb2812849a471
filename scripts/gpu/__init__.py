"""Jobs for a GPU node."""
