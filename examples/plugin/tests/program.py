"""A program that answers as command-line models do: it reads the whole prompt, thinks, and writes word by word."""

import random
import sys
import time

LONG_CHARS = 1000

prompt = sys.stdin.buffer.read().decode()
if sys.argv[1:] == ["fail"]:
    sys.exit(3)
if sys.argv[1:] == ["silent"]:
    sys.exit(0)
if len(prompt) > LONG_CHARS:
    time.sleep(1.0)
words = random.Random(prompt)  # the same prompt, the same answer
for number in range(400):
    sys.stdout.buffer.write(f"{words.choice(['river', 'mill', 'wáter', '石'])} ".encode())
    if number % 10 == 0:
        sys.stdout.buffer.flush()
    if number > 100:
        time.sleep(0.01)  # so that there is an answer to be stopped in
