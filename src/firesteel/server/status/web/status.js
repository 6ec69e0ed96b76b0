"use strict";
// What is served, how fast, and by which kernels.

const SPAN_S = 120, POLL_MS = 1000, LEDGER_MS = 5000, SMOOTH_S = 3;
const served = {model: null, samples: [], rates: []};

async function pollHealth() {
  try {
    const found = await (await ask("/health/live")).json();
    showHealth(found.status, found.reason || found.status);
  } catch {
    showHealth("lost", "no connection");
  }
}

function showHealth(status, words) {
  if (find("health").textContent === words) return;
  find("health").className = status;
  find("health").textContent = words;
  if (status === "ready") findModel();
}

async function findModel() {
  try {
    const listed = (await (await ask("/v1/models")).json()).data;
    served.model = listed[0].id;
    find("model").textContent = listed.map(one => one.id).join(", ");
    find("context").textContent = `${listed[0].max_model_len.toLocaleString("en")} tokens of context`;
    document.title = `${served.model} · firesteel`;
  } catch {
    find("model").textContent = find("context").textContent = "";
  }
}

// Prometheus text: the sum over a name's labels.
function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const parts = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)/.exec(line);
    if (parts) found[parts[1]] = (found[parts[1]] || 0) + Number(parts[2]);
  }
  return found;
}

async function pollMetrics() {
  let found;
  try {
    found = readMetrics(await (await ask("/metrics")).text());
  } catch {
    return;
  }
  const now = performance.now() / 1000, tokens = found["vllm:generation_tokens_total"] || 0;
  const before = served.samples.at(-1);
  if (before && tokens < before.tokens) served.samples = [];  // the server was started again
  served.samples.push({now, tokens});
  while (served.samples[0].now < now - SMOOTH_S) served.samples.shift();
  const first = served.samples[0];
  const speed = now > first.now ? (tokens - first.tokens) / (now - first.now) : 0;
  served.rates.push({now, speed});
  while (served.rates[0].now < now - SPAN_S) served.rates.shift();
  find("speed").textContent = short(speed);
  find("running").textContent = short(found["vllm:num_requests_running"] || 0);
  find("waiting").textContent = short(found["vllm:num_requests_waiting"] || 0);
  showCache(found);
  drawPlot(now);
}

function showCache(found) {
  const share = 100 * (found["vllm:kv_cache_usage_perc"] || 0);
  const shown = share > 0 && share < 0.1 ? "<0.1" : share.toFixed(share > 0 && share < 10 ? 1 : 0);
  find("cache").textContent = `${shown} %`;
  find("cache-bar").style.width = `${Math.min(share, 100)}%`;
  const asked = found["vllm:prefix_cache_queries_total"] || 0, hits = found["vllm:prefix_cache_hits_total"] || 0;
  const held = short(found["firesteel_pages_held"] || 0);
  const words = [`${held} of ${short(found["firesteel_pages"] || 0)} pages held`];
  words.push(`${short(found["firesteel_pages_idle"] || 0)} kept for prompts to come`);
  if (asked) words.push(`${(100 * hits / asked).toFixed(0)} % of prompt tokens were cached`);
  find("cache-text").textContent = words.join(" · ");
}

function short(number) {
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)} M`;
  if (number >= 1e4) return `${(number / 1e3).toFixed(1)} k`;
  return number >= 100 || Number.isInteger(number) ? number.toFixed(0) : number.toFixed(1);
}

// A round number at or above the highest rate.
function ceilingOf(highest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(highest, 10)));
  return power * [1, 2, 5, 10].find(step => step * power >= highest);
}

function drawPlot(now) {
  const plot = find("plot"), width = plot.clientWidth, height = plot.clientHeight;
  const top = 14, bottom = height - 16, most = ceilingOf(Math.max(...served.rates.map(one => one.speed), 1));
  const x = one => width * (1 - (now - one.now) / SPAN_S), y = one => bottom - (bottom - top) * one.speed / most;
  const edge = served.rates.map(one => `${x(one).toFixed(1)},${y(one).toFixed(1)}`);
  const first = x(served.rates[0]).toFixed(1), last = x(served.rates.at(-1)).toFixed(1);
  plot.replaceChildren(
    shape("line", {x1: 0, x2: width, y1: top, y2: top}), shape("line", {x1: 0, x2: width, y1: bottom, y2: bottom}),
    shape("polygon", {class: "area", points: `${first},${bottom} ${edge.join(" ")} ${last},${bottom}`}),
    shape("polyline", {class: "edge", points: edge.join(" ")}),
    shape("text", {x: 0, y: top - 3}, short(most)), shape("text", {x: 0, y: height - 3}, "2 min ago"),
    shape("text", {x: width, y: height - 3, "text-anchor": "end"}, "now"));
}

function shape(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

async function pollLedger() {
  let ledger;
  try {
    ledger = await (await ask("/ledger")).json();
  } catch (error) {
    find("kernel-note").textContent = error.message;
    find("kernel-note").hidden = false;
    return;
  }
  find("device").textContent = ledger.device;
  const ran = [...ledger.ran].sort((one, other) => other.seconds - one.seconds || other.calls - one.calls);
  const idle = Object.entries(ledger.kernels).filter(([op]) => !ran.some(one => one.op === op));
  find("ledger").tBodies[0].replaceChildren(...ran.map(ranRow), ...idle.map(idleRow));
  find("ledger").hidden = !(ran.length + idle.length);
  find("kernel-note").textContent = ran.length ? "" : "none yet: ask for something";
  find("kernel-note").hidden = ran.length > 0;
}

function ranRow(one) {
  const row = element("tr");
  const launches = Object.entries(one.launches).map(([name, count]) => `${count} × ${name}${proof(one, name)}`);
  row.append(
    element("td", {text: one.op}),
    element("td", {text: [one.implementation, one.activation].filter(Boolean).join(", ")}),
    element("td", {text: one.calls.toLocaleString("en"), kind: "number"}),
    element("td", {text: launches.join("; ") || "none: plain torch", kind: "launches"}));
  if (one.clipped) row.lastChild.textContent += `; ${one.clipped.toLocaleString("en")} values clipped`;
  return row;
}

function proof(one, kernel) {
  const codes = one.artefacts.filter(code => code.kernel === kernel && code.verdict !== "none");
  const read = [...new Set(codes.map(code => code.verdict))].filter(Boolean);
  return read.length ? ` (${read.join(", ")})` : "";
}

function idleRow([op, implementations]) {
  const row = element("tr", {kind: "idle"});
  row.append(element("td", {text: op}), element("td", {text: implementations}),
    element("td", {text: "0", kind: "number"}), element("td", {text: "not called yet"}));
  return row;
}

// Each poll waits for the one before it, and none runs while nobody looks.
async function every(milliseconds, poll) {
  while (true) {
    if (!document.hidden) await poll();
    await new Promise(resolve => setTimeout(resolve, milliseconds));
  }
}

every(POLL_MS, pollMetrics);
every(POLL_MS, pollHealth);
every(LEDGER_MS, pollLedger);
