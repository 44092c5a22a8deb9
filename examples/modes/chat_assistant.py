"""A person reads along while the answer is written. Run it twice: the second answer comes from the cache."""

import os

from openai import OpenAI

url = os.environ.get("REFRAIN_URL", "http://127.0.0.1:8080")
client = OpenAI(base_url=f"{url}/chat_assistant/v1", api_key=os.environ.get("REFRAIN_KEY", "none"))

with client.chat.completions.with_streaming_response.create(
    model="SmolLM2-135M-Instruct",
    messages=[{"role": "user", "content": "Name one good thing about the sea."}],
    temperature=0,
    stream=True,
) as response:
    print(f"[{response.headers['x-refrain-cache']}]")
    for chunk in response.parse():
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
