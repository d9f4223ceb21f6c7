// The package `ollama` of npm against the service at ADDRESS: client_ollama.mjs ADDRESS PHOTO EXPECTED
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Ollama } from "ollama";

const [, , address, photo, expected] = process.argv;
const { captions, tokens, translation, version } = JSON.parse(expected);
const client = new Ollama({ host: address });
const generate = { model: "limner", prompt: "What is in this picture?", images: [photo] };
const chat = { model: "limner", messages: [{ role: "user", content: "Describe.", images: [readFileSync(photo)] }] };

async function collect(stream) {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
}

// whole responses
const made = await client.generate(generate);
assert.deepEqual([made.response, made.done_reason, made.eval_count], [captions[0], "stop", tokens]);
assert.ok(made.total_duration > 0);
assert.deepEqual((await client.chat(chat)).message, { role: "assistant", content: captions[0] });
const options = { num_predict: 2, repeat_penalty: 1.1 };
const limited = await client.generate({ ...generate, options, keep_alive: "5m" });
assert.deepEqual([limited.done_reason, limited.eval_count], ["length", 2]);
const { logprobs } = await client.generate({ ...generate, logprobs: true });
assert.equal(logprobs.map((token) => token.token).join(""), captions[0]);
const labels = JSON.parse((await client.chat({ ...chat, format: "json" })).message.content).labels;
assert.deepEqual(labels.map((label) => label.name), ["cat"]);
const translated = await client.generate({ model: "limner-en-de", prompt: "A dog is on the beach." });
assert.equal(translated.response, translation);

// streams
const generated = await collect(client.generate({ ...generate, stream: true }));
assert.equal(generated.map((part) => part.response).join(""), captions[0]);
assert.deepEqual(generated.map((part) => part.done), [...Array(tokens).fill(false), true]);
const chatted = await collect(client.chat({ ...chat, stream: true }));
assert.equal(chatted.map((part) => part.message.content).join(""), captions[0]);

// embeddings
const embedded = await client.embed({ model: "limner", input: ["a cat", "a rocket"] });
assert.equal(embedded.embeddings.length, 2);
assert.ok(embedded.total_duration > 0 && embedded.prompt_eval_count === 0);
assert.deepEqual((await client.embeddings({ model: "limner", prompt: "a cat" })).embedding, embedded.embeddings[0]);

// models
const names = (await client.list()).models.map((model) => model.name);
for (const name of ["limner:latest", "limner:de", "limner-en-de:latest"]) assert.ok(names.includes(name), name);
const running = (await client.ps()).models.map((model) => model.name);
assert.deepEqual(running, ["limner:latest", "limner-en-de:latest", "limner-de-en:latest"]);
const shown = await client.show({ model: "limner:latest" });
assert.deepEqual(shown.capabilities, ["completion", "vision", "embedding"]);
assert.equal((await client.generate({ model: "limner" })).done_reason, "load");
assert.equal((await client.version()).version, version);

// errors
for (const [request, status, message] of [
  [() => client.generate({ ...generate, model: "llava" }), 404, /not served/],
  [() => client.generate({ ...generate, model: "llava", stream: true }), 404, /not served/],
  [() => client.generate({ ...generate, images: ["aGVsbG8="] }), 400, /not an image/],
  [() => client.chat({ model: "limner", messages: [{ role: "user", content: "Hello" }] }), 400, /takes one image, got 0/],
  [() => client.pull({ model: "llava" }), 404, /Not Found/],
]) {
  await assert.rejects(request, { name: "ResponseError", status_code: status, message });
}
