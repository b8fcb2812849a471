"""The part that lives inside a serving engine: record and pin its batches.

`scheduler` and `engine_facts` run in the engine, `route` in its HTTP server, `client` in whoever
asks. Nothing is imported here: the scheduler is loaded by its name, and the rest needs no vLLM.
"""
