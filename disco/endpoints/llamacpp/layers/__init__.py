"""A model's layers in files of their own, and how a part of a model computes."""
