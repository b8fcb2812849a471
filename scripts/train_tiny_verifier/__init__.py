"""Train the verifier that ships in `harness/verifiers/embedded` from nothing, on one CPU core.

Run `python -m scripts.train_tiny_verifier --cpu-seconds 1300 --out DIR`. Problems and candidate
solutions are generated, so there is no data to fetch. Every seed is fixed; the budget is CPU time,
so the weights are not reproducible bit for bit, while the tokenizer and the decisions are.
"""
