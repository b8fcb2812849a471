"""The endpoint backend: OpenAI-compatible servers that somebody else runs.

`options` says what can be asked of them, `server_words` what one says of itself, `flights` takes
requests there together; `verifier` puts them together. What the server batches is seen by nobody:
a commit's membership is `requested`.
"""

from harness.verifiers.endpoint.verifier import EndpointVerifier

__all__ = ["EndpointVerifier"]
