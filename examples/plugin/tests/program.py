"""A program that answers as command-line models do: it reads the whole prompt, thinks, and writes word by word."""

import random
import sys
import time

LONG_CHARS = 1000

sys.stdin.reconfigure(encoding="utf-8")
sys.stdout.reconfigure(encoding="utf-8")
prompt = sys.stdin.read()
if sys.argv[1:] == ["fail"]:
    sys.exit(3)
if sys.argv[1:] == ["silent"]:
    sys.exit(0)
if len(prompt) > LONG_CHARS:
    time.sleep(1.0)
words = random.Random(prompt)  # the same prompt, the same answer
for number in range(400):
    print(words.choice(["river", "mill", "wáter", "石"]), end=" ", flush=number % 10 == 0)
    if number > 100:
        time.sleep(0.01)  # so that there is an answer to be stopped in
print()
