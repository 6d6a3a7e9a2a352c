"""Several answers of one loaded model at the same time, each verified against what a client has drafted."""
