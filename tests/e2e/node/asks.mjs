// Asks with the official client. Each line of standard input is one request, started as it comes:
//   {"id": 1, "baseURL": "http://…/v1", "body": {…}}
// and each answer is one line of output, when it is there: {"id": 1, "cache": "joined", "answer": {…}}. The answer is
// the whole object, of a stream the one that the client itself puts together; or there is an "error".
import { createInterface } from "node:readline";
import OpenAI from "openai";
import { ChatCompletionStream } from "openai/lib/ChatCompletionStream";

const apiKey = process.argv[2];

async function ask({ id, baseURL, body }) {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 30_000 });
  try {
    const { data, response } = await client.chat.completions.create(body).withResponse();
    const cache = response.headers.get("x-refrain-cache");
    const answer = body.stream
      ? await ChatCompletionStream.fromReadableStream(data.toReadableStream()).finalChatCompletion()
      : data;
    return { id, cache, answer };
  } catch (error) {
    return { id, error: error.message, kind: error.constructor.name };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  ask(JSON.parse(line)).then((result) => console.log(JSON.stringify(result)));
}
