// The server's API, as any client uses it. Paths are relative: the page may be behind a prefix.

const KEY = "tidemill.key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

/** What went wrong, in the server's words where it has some. `status` is 0 without an answer. */
export class ApiError extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const authorization = () => (key.get() ? { authorization: `Bearer ${key.get()}` } : {});

async function request(path, options = {}) {
  const headers = { ...options.headers, ...authorization() };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`.trim();
  try {
    message = (await response.json()).error.message || message;
  } catch {
    // a proxy's own page, say: the status has to do
  }
  const after = Number(response.headers.get("retry-after"));
  throw new ApiError(message, response.status, after > 0 ? after : null);
}

/** [{id, max_model_len, state, …}] */
export async function models() {
  return (await (await request("v1/models")).json()).data;
}

export async function metrics(signal) {
  return (await request("metrics", { signal })).text();
}

/** {status, models: {name: state}}; a server that is not ready says so with 503. */
export async function readiness(signal) {
  const headers = authorization();
  const response = await fetch("health/ready", { headers, signal, cache: "no-store" });
  return response.json();
}

/** The answer to a chat as it comes: {text}, {finish}, {usage}. Throws ApiError, AbortError. */
export async function* chat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, Number(event.error.code) || 500);
    if (event.usage) yield { usage: event.usage };
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    if (delta.reasoning_content) yield { reasoning: delta.reasoning_content };
    if (delta.content) yield { text: delta.content };
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
  }
  throw new ApiError("The answer broke off: the connection was closed before its end.");
}

/** The data of each server-sent event. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // left early: the connection is not to stay open
  }
}
