// Requests to the service. Paths are relative to the page, so that it works below any prefix.

const KEY = "limner-api-key"; // where the tab keeps the API key, if the service wants one

/** An answer of the service that is an error, or no answer. */
export class ApiError extends Error {
  /** @param retryAfter seconds until the request may be repeated, if the service says so. */
  constructor(status, message, retryAfter = null) {
    super(message);
    [this.status, this.retryAfter] = [status, retryAfter];
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The service does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const message = body.error?.message ?? body.error ?? body.detail ?? response.statusText;
  const seconds = Number(response.headers.get("Retry-After"));
  const text = typeof message === "string" && message ? message : `the service answered with status ${response.status}`;
  throw new ApiError(response.status, text, seconds > 0 ? seconds : null);
}

const json = (body, signal) => ({
  method: "POST", body: JSON.stringify(body), signal, headers: { "Content-Type": "application/json" },
});

export async function get(path) {
  return (await send(path, {})).json();
}

export async function post(path, body, signal) {
  return (await send(path, json(body, signal))).json();
}

/** Return an image of the service as a URL that an <img> can show, which sends no API key by itself. */
export async function imageUrl(path) {
  if (!sessionStorage.getItem(KEY)) return path;
  return URL.createObjectURL(await (await send(path, {})).blob());
}

/** Send a request whose answer is a stream of server-sent events; yield pairs of the name and the data of each. */
export async function* events(path, body, signal) {
  const response = await send(path, json(body, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The connection to the service was lost before the end of the answer.");
    });
    buffer = (buffer + (value ?? "")).replace(/\r\n/g, "\n");
    const messages = buffer.split("\n\n");
    buffer = messages.pop();
    for (const message of messages) {
      const event = parseEvent(message);
      if (event) yield event;
    }
    if (done) return;
  }
}

function parseEvent(message) {
  let name = "message";
  const data = [];
  for (const line of message.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null;
}
