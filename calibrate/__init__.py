"""Many verifier calls: how far do scores move, and what tolerance follows."""

from importlib.metadata import version

__version__ = version("scorepin")
__all__ = ["__version__"]
