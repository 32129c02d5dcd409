"use strict";
// Asks the admin API every second and fills the tables. Everything shown is set as text, never as markup.
const EVERY_MS = 1000;
const byId = (id) => document.getElementById(id);
let token = "";
let last = new Map();

const number = (value) => value.toLocaleString("en");
const seconds = (value) => {
  if (value === null || value === undefined) return "–";
  if (value < 60) return value.toFixed(value < 10 ? 1 : 0) + " s";
  if (value < 3600) return Math.floor(value / 60) + " min";
  return (value / 3600).toFixed(1) + " h";
};
const tone = (state) =>
  ({ running: "good", ready: "good", retrying: "wait", paused: "wait", draining: "wait", starting: "wait", stuck: "bad", stopped: "bad" })[state] || "";

async function ask(path) {
  const response = await fetch(path, { headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store" });
  if (response.status === 401) {
    byId("login").hidden = false;
    throw new Error("a token is needed");
  }
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail || response.statusText);
  return body;
}

function fill(table, rows) {
  const body = byId(table).tBodies[0];
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    for (const [text, kind] of cells) {
      const cell = document.createElement("td");
      cell.textContent = text;
      if (kind) cell.className = kind;
      if (kind === "key") cell.title = text;
      row.append(cell);
    }
    return row;
  }));
  byId(table).hidden = rows.length === 0;
  const empty = byId("no-" + table);
  if (empty) empty.hidden = rows.length !== 0;
}

function rate(pipeline, now) {
  const before = last.get(pipeline.name);
  last.set(pipeline.name, { handled: pipeline.handled, at: now });
  if (!before || now <= before.at || pipeline.handled < before.handled) return "–";
  return number(Math.round((pipeline.handled - before.handled) * 1000 / (now - before.at)));
}

function showPipelines(pipelines) {
  const now = performance.now();
  fill("pipelines", pipelines.map((p) => [
    [p.name], [p.topic], [p.state, tone(p.state)],
    [number(p.lag.messages), "n"], [seconds(p.lag.oldest_age_seconds), "n"], [rate(p, now), "n"],
    [number(p.handled), "n"], [number(p.failed), "n"], [number(p.dead), "n"],
    [number(p.lanes.total), "n"], [number(p.lanes.busy), "n"],
    [number(p.lanes.retrying), p.lanes.retrying ? "n wait" : "n"], [number(p.lanes.stuck), p.lanes.stuck ? "n bad" : "n"],
  ]));
  const trouble = pipelines.flatMap((p) => p.partitions
    .filter((partition) => partition.state === "paused" || partition.state === "stopped")
    .map((partition) => `${p.name}, partition ${partition.partition}: ${partition.state}. ${partition.why || ""}`));
  byId("partitions").replaceChildren(...trouble.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  byId("trouble").hidden = trouble.length === 0;
}

const laneRow = (lane) => [
  [lane.pipeline], [lane.key === null ? "(no key)" : lane.key, "key"], [lane.state, tone(lane.state)],
  [number(lane.depth), "n"], [number(lane.attempt), "n"], [seconds(lane.waiting_seconds), "n"], [lane.why || ""],
];

async function look() {
  const state = byId("state");
  try {
    const [{ pipelines }, waiting, deep] = await Promise.all([
      ask("/admin/pipelines"), ask("/admin/lanes?sort=waiting&limit=50"), ask("/admin/lanes?sort=depth&limit=15"),
    ]);
    byId("login").hidden = true;
    showPipelines(pipelines);
    fill("waiting", waiting.lanes.filter((lane) => lane.state === "stuck" || lane.state === "retrying").slice(0, 15).map(laneRow));
    fill("deep", deep.lanes.filter((lane) => lane.depth > 0).map(laneRow));
    state.textContent = "live, " + new Date().toLocaleTimeString();
    state.className = "";
  } catch (error) {
    state.textContent = "no answer: " + error.message;
    state.className = "bad";
  }
  setTimeout(look, EVERY_MS);
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
});
fetch("/version").then((response) => response.json()).then((version) => {
  byId("version").textContent = "version " + version.version + ", " + version.broker + " broker";
}).catch(() => {});
look();
