"use strict";
// Requests to this server, with the API key if there is one.

function headers() {
  const key = sessionStorage.getItem("key");
  return key ? {Authorization: `Bearer ${key}`} : {};
}

async function ask(path, options = {}) {
  const response = await fetch(path, {...options, headers: {...headers(), ...options.headers}, cache: "no-store"});
  if (response.status === 401) find("key-form").hidden = false;
  if (!response.ok && path !== "/health/live") throw new Error(await errorOf(response));
  return response;
}

async function errorOf(response) {
  const text = await response.text();
  try {
    const said = JSON.parse(text).error;
    return said.message || String(said);
  } catch {
    return `${response.status} ${response.statusText || text.slice(0, 200)}`;
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}
