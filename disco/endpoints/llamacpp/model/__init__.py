"""The model itself: its file, llama.cpp's C interface, and sampling."""
