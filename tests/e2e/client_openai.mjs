// The package `openai` of npm against the service at ADDRESS: client_openai.mjs ADDRESS PHOTO EXPECTED
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const [, , address, photo, expected] = process.argv;
const { captions, tokens, translation } = JSON.parse(expected);
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none", maxRetries: 0 });
const url = `data:image/jpeg;base64,${readFileSync(photo).toString("base64")}`;
const content = [{ type: "text", text: "Is the cat blue?" }, { type: "image_url", image_url: { url, detail: "low" } }];
const chat = { model: "limner", messages: [{ role: "user", content }] };
const parts = [{ type: "input_text", text: "What is this?" }, { type: "input_image", image_url: url, detail: "auto" }];
const request = { model: "limner", input: [{ role: "user", content: parts }] };
const unknown = { ...chat, model: "gpt-4o" };

async function collect(stream) {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
}

// chats, whole and in parts
const { data: made, response: answer } = await client.chat.completions.create(chat).withResponse();
assert.equal(made.choices[0].message.content, captions[0]);
assert.equal(made.choices[0].finish_reason, "stop");
assert.equal(made.usage.completion_tokens, tokens);
assert.equal(answer.headers.get("limner-ignored"), "prompt");
const several = await client.chat.completions.create({ ...chat, n: captions.length, logprobs: true });
assert.deepEqual(several.choices.map((choice) => choice.message.content), captions);
assert.equal(several.choices[0].logprobs.content.map((token) => token.token).join(""), captions[0]);
const limited = await client.chat.completions.create({ ...chat, max_completion_tokens: 2 });
assert.equal(limited.choices[0].finish_reason, "length");
const deltas = (await collect(client.chat.completions.create({ ...chat, stream: true }))).map((chunk) => chunk.choices[0]);
assert.equal(deltas.map((delta) => delta.delta.content ?? "").join(""), captions[0]);
assert.equal(deltas.at(-1).finish_reason, "stop");
assert.equal(deltas.length, tokens + 2); // the role, every token, the end
const streamed = client.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
assert.equal(await streamed.finalContent(), captions[0]);
assert.equal((await streamed.totalUsage()).completion_tokens, tokens);

// labels by a JSON schema
const schema = { type: "object", properties: { labels: { type: "array", items: { type: "string" } } } };
const format = { type: "json_schema", json_schema: { name: "labels", schema } };
const parsed = await client.chat.completions.parse({ ...chat, response_format: format });
assert.deepEqual(parsed.choices[0].message.parsed, { labels: ["cat"] });

// responses, whole and in events
const response = await client.responses.create(request);
assert.deepEqual([response.output_text, response.status], [captions[0], "completed"]);
assert.equal(response.usage.output_tokens, tokens);
const incomplete = await client.responses.create({ ...request, max_output_tokens: 2 });
assert.deepEqual(incomplete.incomplete_details, { reason: "max_output_tokens" });
const events = client.responses.stream(request);
const types = (await collect(events)).map((event) => event.type);
assert.deepEqual([types[0], types.at(-1)], ["response.created", "response.completed"]);
assert.equal(types.filter((type) => type === "response.output_text.delta").length, tokens);
assert.equal((await events.finalResponse()).output_text, captions[0]);
const translated = await client.responses.create({ model: "limner-en-de", input: "A dog is on the beach." });
assert.equal(translated.output_text, translation);

// embeddings, which this client asks for in base64
const { data: rows } = await client.embeddings.create({ model: "limner", input: ["a cat", "a rocket", url] });
const dot = (left, right) => left.embedding.reduce((sum, value, place) => sum + value * right.embedding[place], 0);
assert.ok(dot(rows[0], rows[2]) > dot(rows[1], rows[2]));
assert.ok(Math.abs(dot(rows[2], rows[2]) - 1) < 1e-4);

// models and errors
const models = await collect(client.models.list());
assert.deepEqual(models.map((model) => model.id), ["limner", "limner-en-de", "limner-de-en"]);
for (const refused of [
  () => client.chat.completions.create(unknown),
  () => client.chat.completions.create({ ...unknown, stream: true }),
  () => client.models.retrieve("gpt-4o"),
]) {
  await assert.rejects(refused, { constructor: OpenAI.NotFoundError, status: 404, param: "model" });
}
await assert.rejects(client.chat.completions.create({ ...chat, n: 0 }), { constructor: OpenAI.BadRequestError, param: "n" });
const noImage = client.responses.stream({ model: "limner", input: "Hello" }).finalResponse();
await assert.rejects(noImage, /takes one image, got 0/);
