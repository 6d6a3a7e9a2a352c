"""Saved prompts: caches of prompts that a model on this machine has read, in a folder, for its next start."""

from __future__ import annotations

from disco.endpoints.saved_prompts.prompt_cache import PromptCache
from disco.endpoints.saved_prompts.prompt_folder import SavedPrompt, forget_saved_prompts, saved_prompts

__all__ = ["PromptCache", "SavedPrompt", "forget_saved_prompts", "saved_prompts"]
