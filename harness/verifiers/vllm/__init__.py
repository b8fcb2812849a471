"""The vLLM backend: an engine in this process, stepped one step at a time.

`options` says what the engine is asked for, `readout` how a score is read off it, `flights` takes
requests through it; `verifier` puts them together. vLLM is imported when a verifier is opened.
"""

from harness.verifiers.vllm.verifier import VllmVerifier

__all__ = ["VllmVerifier"]
