"""A program wants one whole object. Run it twice: the same invoice is read once."""

import json
import os

from openai import OpenAI

url = os.environ.get("REFRAIN_URL", "http://127.0.0.1:8080")
client = OpenAI(base_url=f"{url}/invoice_json_extraction/v1", api_key=os.environ.get("REFRAIN_KEY", "none"))

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "string", "maxLength": 12}, "total": {"type": "integer"}},
    "required": ["number", "total"],
    "additionalProperties": False,
}
response = client.chat.completions.with_raw_response.create(
    model="SmolLM2-135M-Instruct",
    messages=[{"role": "user", "content": "Invoice A-17 of Monday. Two chairs, 45 each. Total: 90."}],
    response_format={"type": "json_schema", "json_schema": {"name": "invoice", "schema": SCHEMA, "strict": True}},
    temperature=0,
    max_tokens=60,
)
print(f"[{response.headers['x-refrain-cache']}]", json.loads(response.parse().choices[0].message.content or "{}"))
