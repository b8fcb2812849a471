"""What a GPU's arithmetic does to a large model's scores, measured in one short run.

Needs torch and transformers and nothing else: no network, no checkpoint, no serving engine. A model
with random weights is made on the device, in the shape of a 7B decoder; its scores round and move
like a trained one's, and they mean nothing.
"""
