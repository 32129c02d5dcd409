"use strict";
// Asks the admin API every second and fills the tables. Everything shown is set as text, never as markup.
const EVERY_MS = 1000;
const TOPICS_EVERY = 10;
let looks = 0;
let next;
let looking = false;
const byId = (id) => document.getElementById(id);
// Kept for this tab only, so that a reload does not ask for it again.
let token = sessionStorage.getItem("token") || "";
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

const authorization = () => (token ? { Authorization: "Bearer " + token } : {});

async function ask(path) {
  const response = await fetch(path, { headers: authorization(), cache: "no-store" });
  if (response.status === 401) {
    byId("login-why").textContent = token
      ? "This server does not know that token."
      : "This server needs a token with the role read.";
    byId("login").hidden = false;
    throw new Error(token ? "the token is not one of this server's" : "a token is needed");
  }
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail || response.statusText);
  return body;
}

// Long reasons are cut to two lines; a click shows all of one, also after the next look.
const opened = new Set();
function reason(text) {
  const why = document.createElement("div");
  why.textContent = text;
  why.className = opened.has(text) ? "why open" : "why";
  why.title = text;
  why.addEventListener("click", () => {
    why.classList.toggle("open") ? opened.add(text) : opened.delete(text);
  });
  return why;
}

function fill(table, rows) {
  const body = byId(table).tBodies[0];
  const labels = [...byId(table).tHead.rows[0].cells].map((cell) => cell.textContent);
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    cells.forEach(([text, kind], column) => {
      const cell = document.createElement("td");
      cell.dataset.label = labels[column];
      if (kind === "why") {
        cell.append(reason(text));
      } else {
        cell.textContent = text;
        if (kind) cell.className = kind;
        if (kind === "key") cell.title = text;
      }
      row.append(cell);
    });
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
    [p.name], [p.state, tone(p.state)],
    [number(p.lag.messages), "n"], [seconds(p.lag.oldest_age_seconds), "n"],
    [number(p.dead), p.dead ? "n bad" : "n"], [number(p.lanes.stuck), p.lanes.stuck ? "n bad" : "n"],
    [number(p.lanes.retrying), p.lanes.retrying ? "n wait" : "n"], [rate(p, now), "n"],
    [number(p.handled), "n"], [number(p.failed), "n"],
    [number(p.lanes.total), "n"], [number(p.lanes.busy), "n"], [p.topic],
  ]));
  const trouble = pipelines.flatMap((p) => p.partitions
    .filter((partition) => partition.state === "paused" || partition.state === "stopped")
    .map((partition) => `${p.name}, partition ${partition.partition}: ${partition.state}. ${partition.why || ""}`));
  list("trouble", "partitions", trouble);
}

function list(section, at, texts) {
  byId(at).replaceChildren(...texts.map((text) => {
    const item = document.createElement("li");
    item.append(reason(text));
    return item;
  }));
  byId(section).hidden = texts.length === 0;
}

function badge(text, kind) {
  byId("ready").hidden = false;
  byId("ready").textContent = text;
  byId("ready").className = "badge " + kind;
}

// Not ready is an answer, too: 503, with the reasons.
async function showReadiness() {
  let response;
  try {
    response = await fetch("/readyz", { cache: "no-store" });
  } catch (error) {
    badge("not reachable", "bad");
    throw error;
  }
  const { reasons } = await response.json();
  const some = reasons && reasons.length;
  badge(response.ok ? (some ? "ready, with remarks" : "ready") : "not ready", response.ok ? (some ? "wait" : "good") : "bad");
  list("reasons", "reason-list", reasons || []);
}

const laneRow = (lane) => [
  [lane.key === null ? "(no key)" : lane.key, "key"], [lane.state, tone(lane.state)],
  [seconds(lane.waiting_seconds), "n"], [number(lane.depth), "n"], [number(lane.attempt), "n"],
  [lane.attempt ? seconds(lane.last_tried_seconds) : "–", "n"], [lane.pipeline], [lane.why || "", "why"],
];

const unread = (topics) => topics
  .filter((topic) => topic.pipelines.length === 0 && topic.messages > 0)
  .map((topic) => `${topic.name}: ${number(topic.messages)} messages are kept, and no pipeline of this server reads them.`);

async function look() {
  const state = byId("state");
  looking = true;
  try {
    await showReadiness();
    const [{ pipelines }, waiting, deep] = await Promise.all([
      ask("/admin/pipelines"), ask("/admin/lanes?sort=waiting&limit=50"), ask("/admin/lanes?sort=depth&limit=15"),
    ]);
    byId("login").hidden = true;
    showPipelines(pipelines);
    // Topics change seldom, and asking for them costs the broker something.
    if (looks++ % TOPICS_EVERY === 0) list("unread", "unread-list", unread((await ask("/admin/topics")).topics));
    fill("waiting", waiting.lanes.filter((lane) => lane.state === "stuck" || lane.state === "retrying").slice(0, 15).map(laneRow));
    fill("deep", deep.lanes.filter((lane) => lane.depth > 0).map(laneRow));
    state.textContent = "live, " + new Date().toLocaleTimeString();
    state.className = "";
  } catch (error) {
    state.textContent = "no answer: " + error.message;
    state.className = "bad";
  }
  looking = false;
  next = setTimeout(look, EVERY_MS);
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  sessionStorage.setItem("token", token);
  // A look that is under way ends first, and then there is another one in any case.
  if (!looking) {
    clearTimeout(next);
    look();
  }
});
// A link would carry no token, so the page asks itself, and shows what it gets.
byId("show-metrics").addEventListener("click", async () => {
  const response = await fetch("/metrics", { headers: authorization(), cache: "no-store" });
  byId("metrics-text").textContent = await response.text();
  byId("metrics").hidden = false;
  byId("metrics").scrollIntoView();
});
fetch("/version").then((response) => response.json()).then((version) => {
  byId("version").textContent = "version " + version.version + ", " + version.broker + " broker";
}).catch(() => {});
look();
