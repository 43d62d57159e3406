// SPDX-License-Identifier: Apache-2.0
// Calls a server by Ollama's own JavaScript client, and prints what it got: HOST MODEL.
import { createRequire } from "node:module";

// The packages are not beside this file.
const { Ollama } = createRequire(`${process.cwd()}/`)("ollama");
const [host, model] = process.argv.slice(2);
const ollama = new Ollama({ host });
const messages = [{ role: "user", content: "abc" }];
const options = { num_predict: 6, temperature: 0 };
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather in a city.",
    parameters: { type: "object", required: ["city"], properties: { city: { type: "string" } } },
  },
};
const shape = {
  type: "object",
  required: ["fits"],
  additionalProperties: false,
  properties: { fits: { type: "boolean" } },
};

async function streamed(parts, text) {
  let whole = "";
  let last;
  for await (const part of parts) {
    whole += text(part);
    last = part;
  }
  return { whole, done: last.done, reason: last.done_reason };
}

async function refused(call) {
  try {
    await call();
    return null;
  } catch (error) {
    return { status: error.status_code, message: error.message };
  }
}

const got = {};
got.chat = (await ollama.chat({ model, messages, options })).message.content;
got.chatStream = await streamed(
  await ollama.chat({ model, messages, options, stream: true }),
  (part) => part.message.content,
);
got.generate = (await ollama.generate({ model, prompt: "abc", options })).response;
got.generateStream = await streamed(
  await ollama.generate({ model, prompt: "abc", options, stream: true }),
  (part) => part.response,
);
const formed = { model, messages, format: shape, options: { temperature: 0 } };
got.structured = JSON.parse((await ollama.chat(formed)).message.content);
const called = await ollama.chat({ model, messages, tools: [weather], options: { temperature: 0, num_predict: 200 } });
got.calls = (called.message.tool_calls ?? []).map((call) => call.function);
got.embed = (await ollama.embed({ model, input: ["abc", "d"] })).embeddings.map((vector) => vector.length);
got.list = (await ollama.list()).models.map((one) => one.name);
got.ps = (await ollama.ps()).models.map((one) => one.name);
got.show = (await ollama.show({ model })).capabilities;
got.version = (await ollama.version()).version;
got.unknown = await refused(() => ollama.chat({ model: "other", messages }));
console.log(JSON.stringify(got));
