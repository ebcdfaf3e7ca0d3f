// The registry's API: JSON answers, and the stream of changes. What cannot be answered is a Refused with the status and the reason.

const TOKEN_KEY = "hami-token";
const AGAIN_MILLISECONDS = [500, 1000, 2000, 5000];

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export function keepToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token.trim());
}

export async function get(path, params = {}, signal = undefined) {
  return (await asked(path, params, { signal })).json();
}

export async function post(path, body) {
  return (await asked(path, {}, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } })).json();
}

/**
 * Follow the changes for ever. `heard` is called with each change, `opened` when a stream begins (what happened before is to be read again),
 * `lost` with what ended it.
 */
export async function follow(path, { heard, opened, lost }) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const response = await asked(path, {}, { headers: { Accept: "text/event-stream" } });
      await opened();
      attempt = 0;
      await read(response.body, heard);
      lost(new Refused(0, "the stream has ended"));
    } catch (problem) {
      await lost(problem);
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS[Math.min(attempt, AGAIN_MILLISECONDS.length - 1)]));
  }
}

/** The data of each `change` in `text`, and what is left behind the last whole one. */
export function changesIn(text) {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const changes = [];
  for (const block of blocks) {
    const lines = block.split("\n");
    const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
    if (lines.includes("event: change") && data.length) changes.push(JSON.parse(data.join("\n")));
  }
  return { changes, rest };
}

async function read(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const found = changesIn(text + value);
    text = found.rest;
    found.changes.forEach(heard);
  }
}

async function asked(path, params, options) {
  const url = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(params)) if (value !== undefined) url.searchParams.set(name, value);
  const headers = { ...options.headers };
  const token = sessionStorage.getItem(TOKEN_KEY);
  if (token) headers["X-Hami-Token"] = token;
  const response = await fetch(url, { ...options, headers, credentials: "same-origin", redirect: "error" });
  if (response.ok) return response;
  const text = await response.text();
  throw new Refused(response.status, reasonIn(text) || `the registry answered ${response.status}`);
}

function reasonIn(text) {
  try {
    return JSON.parse(text).error ?? "";
  } catch {
    return text.slice(0, 300);
  }
}
