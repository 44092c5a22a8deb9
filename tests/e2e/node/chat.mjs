// Asks one question with the official client, plain and streamed, and prints what came as one line of JSON.
//   node chat.mjs BASE_URL API_KEY MODEL QUESTION
import OpenAI from "openai";

const [baseURL, apiKey, model, question] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 120_000 });
const ask = { model, temperature: 0, messages: [{ role: "user", content: question }] };

const plain = await client.chat.completions.create(ask).withResponse();

const streamed = await client.chat.completions
  .create({ ...ask, stream: true, stream_options: { include_usage: true } })
  .withResponse();
let text = "";
let usage = null;
let finish = null;
for await (const chunk of streamed.data) {
  text += chunk.choices[0]?.delta?.content ?? "";
  finish = chunk.choices[0]?.finish_reason ?? finish;
  usage = chunk.usage ?? usage;
}

const cache = (answer) => answer.response.headers.get("x-refrain-cache");
console.log(
  JSON.stringify({
    plain: {
      text: plain.data.choices[0].message.content,
      finish: plain.data.choices[0].finish_reason,
      usage: plain.data.usage,
      cache: cache(plain),
    },
    streamed: { text, finish, usage, cache: cache(streamed) },
  }),
);
