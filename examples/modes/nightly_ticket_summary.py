"""A night's tickets, in one file. Run it twice: the second night's batch costs nothing."""

import json
import os
import time
from pathlib import Path

from openai import OpenAI

url = os.environ.get("REFRAIN_URL", "http://127.0.0.1:8080")
client = OpenAI(base_url=f"{url}/nightly_ticket_summary/v1", api_key=os.environ.get("REFRAIN_KEY", "none"))

tickets = Path(__file__).with_name("tickets.jsonl")
file = client.files.create(file=tickets.open("rb"), purpose="batch")
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"night": "monday"}
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
print(f"[{batch.status}] {batch.request_counts}")
for line in client.files.content(batch.output_file_id or "").iter_lines() if batch.output_file_id else ():
    answer = json.loads(line)
    print(f"{answer['custom_id']}: {answer['response']['body']['choices'][0]['message']['content']}")
