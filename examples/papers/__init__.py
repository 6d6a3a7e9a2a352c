"""Evaluations of papers, disco's figures beside the printed ones: one package per paper."""
