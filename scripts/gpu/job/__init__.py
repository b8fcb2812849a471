"""The job of a GPU node: calibrate a model given by name, run the CUDA tests, leave one folder."""
