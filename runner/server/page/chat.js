// SPDX-License-Identifier: Apache-2.0
"use strict";
const at = id => document.getElementById(id);
const STORE = "mlc-rvv.conversations", SETTINGS = "mlc-rvv.settings", OPEN = "mlc-rvv.open";
const KEPT = ["system", "temperature", "most"];  // not the key
const deleted = new Set();
let chat = blank(), model = "", running = null, editing = null;

function blank() {
  return { id: Date.now().toString(36) + Math.random().toString(36).slice(2), turns: [] };
}

// What the browser keeps; a page of another version, or a user, may have left anything there.
function stored(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(name)) || fallback;
  } catch {
    return fallback;
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    at("state").textContent = "the browser does not keep this conversation: delete older ones";
  }
}

function isTurn(turn) {
  return turn && ["user", "assistant"].includes(turn.role) &&
    [turn.content, turn.thought || ""].every(text => typeof text === "string");
}

function conversations() {
  const found = stored(STORE, []);
  if (!Array.isArray(found)) return [];
  return found.filter(one => one && typeof one.id === "string" && Array.isArray(one.turns) &&
    one.turns.every(isTurn));
}

function others(id) {
  return conversations().filter(one => one.id !== id);
}

// Not if it is empty, or was deleted while its answer came.
function keep(one) {
  const first = deleted.has(one.id) || !one.turns.length ? [] : [one];
  store(STORE, [...first, ...others(one.id)]);
  if (one.id === chat.id) store(OPEN, one.id);
  list();
}

function remove(id, title) {
  if (!confirm("Delete the conversation “" + title + "”?")) return;
  deleted.add(id);
  store(STORE, others(id));
  if (id === chat.id) show(blank());
  list();
  at("text").focus();
}

function button(label, name, act) {
  const made = element("button", label);
  made.type = "button";
  if (name !== label) made.setAttribute("aria-label", name);
  made.addEventListener("click", act);
  return made;
}

function list() {
  at("kept").replaceChildren(...conversations().map(one => {
    const title = one.turns[0] ? one.turns[0].content.slice(0, 60) : "empty";
    const open = button(title, title, () => show(one));
    if (one.id === chat.id) open.setAttribute("aria-current", "true");
    return element("li", open, button("Delete", "Delete " + title, () => remove(one.id, title)));
  }));
}

// Shows a conversation, in place of the one that is shown.
function show(one) {
  if (running) running.abort();
  chat = one;
  store(OPEN, one.id);
  editing = null;
  at("state").textContent = "";
  draw();
  list();
  at("turns").scrollTop = at("turns").scrollHeight;
}

function draw() {
  at("log").replaceChildren();
  chat.turns.forEach((turn, index) => fill(add(turn.role, index), turn));
  offerAgain();
}

// An empty turn; returns the place of its text.
function add(role, index) {
  const who = element("p", { user: "You", assistant: "Model", error: "Error" }[role]);
  who.className = "who";
  const body = element("div");
  const turn = element("div", who, body);
  turn.className = "turn " + role;
  if (role === "user") turn.append(actions(button("Edit", "Edit this message", () => edit(index))));
  following(() => at("log").append(turn));
  return body;
}

function actions(...buttons) {
  const row = element("p", ...buttons);
  row.className = "actions";
  return row;
}

function fill(body, turn) {
  if (turn.role === "user") {
    body.textContent = turn.content;
    return;
  }
  const blocks = markdown(turn.content);
  if (turn.thought) blocks.unshift(thoughts(body, turn.thought));
  // What did not change stays: a selection, the focus, or how far a block is scrolled.
  const shown = body.childNodes;
  let same = 0;
  while (same < shown.length && same < blocks.length && shown[same].isEqualNode(blocks[same])) {
    ++same;
  }
  while (shown.length > same) body.lastChild.remove();
  body.append(...blocks.slice(same));
}

// Closed, unless the reader opened it.
function thoughts(body, text) {
  const made = element("details", element("summary", "Thoughts"), ...markdown(text));
  made.open = Boolean(body.querySelector(":scope > details[open]"));
  return made;
}

// Changes the turns, and shows their end if it was shown before.
function following(change) {
  const view = at("turns");
  const ended = view.scrollHeight - view.scrollTop - view.clientHeight < 40;
  change();
  if (ended) view.scrollTop = view.scrollHeight;
}

// The last answer can be computed again.
function offerAgain() {
  for (const old of document.querySelectorAll(".assistant .actions")) old.remove();
  const last = [...document.querySelectorAll(".user, .assistant")].pop();
  if (running || !last || last.classList.contains("user")) return;
  const again = button("Regenerate", "Regenerate this answer", () => {
    if (running) return;
    const before = chat.turns.slice();
    chat.turns.pop();
    last.remove();
    answer(mine => restore(mine, before));
  });
  following(() => last.append(actions(again)));
}

function edit(index) {
  if (running) return;
  editing = index;
  at("text").value = chat.turns[index].content;
  at("state").textContent = "Send replaces the message and what follows it; Escape keeps them";
  at("text").focus();
}

function restore(mine, turns) {
  mine.turns = turns;
  if (mine === chat) draw();
}

function headers() {
  const key = at("key").value;
  const asked = { "Content-Type": "application/json" };
  if (key) asked.Authorization = "Bearer " + key;
  return asked;
}

async function explain(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "the server answered " + response.status;
  }
}

async function askModel() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw new Error(await explain(response));
  model = (await response.json()).data[0].id;
  at("model").textContent = model;
}

function body(turns) {
  const messages = turns.map(({ role, content }) => ({ role, content }));
  const system = at("system").value.trim();
  if (system) messages.unshift({ role: "system", content: system });
  const asked = { model, messages, stream: true, stream_options: { include_usage: true } };
  if (at("temperature").value) asked.temperature = Number(at("temperature").value);
  if (at("most").value) asked.max_tokens = Number(at("most").value);
  return JSON.stringify(asked);
}

// Calls back with each event of a stream.
async function events(response, each) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ") || part === "data: [DONE]") continue;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Error(event.error.message);
      each(event);
    }
  }
}

// Draws an answer at most once a frame, however fast it comes.
class Drawing {
  constructor(shown) {
    this.shown = shown;
    this.turn = { role: "assistant", content: "", thought: "" };
    this.waits = false;
  }

  add(delta) {
    this.turn.content += delta.content || "";
    this.turn.thought += delta.reasoning_content || "";
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.waits = false;
    following(() => fill(this.shown, this.turn));
  }

  get empty() {
    return !this.turn.content && !this.turn.thought;
  }
}

// The answer goes to `drawing` as it comes; gives the number of its tokens and why it ended.
async function receive(mine, drawing, signal) {
  let tokens = 0, ended = "";
  if (!model) await askModel();
  const options = { method: "POST", headers: headers(), body: body(mine.turns), signal };
  const response = await fetch("v1/chat/completions", options);
  if (!response.ok) throw new Error(await explain(response));
  await events(response, event => {
    for (const choice of event.choices) {
      drawing.add(choice.delta);
      note(mine, drawing.turn.content ? "answering" : "thinking");
      ended = choice.finish_reason || ended;
    }
    if (event.usage) tokens = event.usage.completion_tokens;
  });
  return { tokens, ended };
}

function busy(now) {
  at("send").disabled = now;
  at("stop").disabled = !now;
  // A screen reader reads an answer when it is whole, not at each token.
  at("log").setAttribute("aria-busy", String(now));
}

// Says how an answer goes, if its conversation is shown; again only what is new.
function note(mine, text) {
  if (mine === chat && at("state").textContent !== text) at("state").textContent = text;
}

// Without an answer, `undo` takes back what asked for it.
async function answer(undo) {
  const mine = chat, start = performance.now();
  for (const old of document.querySelectorAll(".error")) old.remove();
  const drawing = new Drawing(add("assistant"));
  running = new AbortController();
  busy(true);
  offerAgain();
  note(mine, "waiting for the answer");
  let failure = null;
  try {
    const { tokens, ended } = await receive(mine, drawing, running.signal);
    const seconds = (performance.now() - start) / 1000;
    const limit = ended === "length" ? ", ended by the limit of tokens" : "";
    note(mine, tokens + " tokens in " + seconds.toFixed(1) + " s" + limit);
  } catch (error) {
    failure = error;
    note(mine, error.name === "AbortError" ? "stopped" : "failed");
  }
  running = null;
  busy(false);
  if (failure && drawing.empty) {
    undo(mine);
  } else {
    drawing.draw();
    mine.turns.push(drawing.turn);
  }
  keep(mine);
  if (mine !== chat) return;
  if (failure && failure.name !== "AbortError") add("error").textContent = failure.message;
  offerAgain();
  // Not if the reader is elsewhere.
  if ([document.body, at("send"), at("stop")].includes(document.activeElement)) at("text").focus();
}

at("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = at("text").value;
  if (running || !text.trim()) return;
  const before = chat.turns.slice(), edited = editing;
  if (edited !== null) {
    chat.turns.length = edited;
    editing = null;
    draw();
  }
  at("text").value = "";
  at("turns").scrollTop = at("turns").scrollHeight;
  const asked = { role: "user", content: text };
  chat.turns.push(asked);
  fill(add("user", chat.turns.length - 1), asked);
  keep(chat);
  answer(mine => {
    if (mine !== chat) return;  // The question stays in its conversation.
    restore(mine, before);
    at("text").value = [text, at("text").value].filter(Boolean).join("\n");
    editing = edited;
  });
});
at("text").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("form").requestSubmit();
});
at("stop").addEventListener("click", () => running && running.abort());
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  if (running) return running.abort();
  if (editing === null) return;
  editing = null;
  at("text").value = "";
  at("state").textContent = "";
});
at("fresh").addEventListener("click", () => {
  show(blank());
  at("text").focus();
});
at("export").addEventListener("click", () => {
  const file = new Blob([JSON.stringify(conversations(), null, 2)], { type: "application/json" });
  const save = element("a");
  save.href = URL.createObjectURL(file);
  save.download = "conversations.json";
  save.click();
  URL.revokeObjectURL(save.href);
});

// Without HTTPS, browsers offer the clipboard to pages of this machine alone.
async function copy(code) {
  if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent);
  getSelection().selectAllChildren(code);
  if (!document.execCommand("copy")) throw new Error("not copied");
}

at("log").addEventListener("click", async event => {
  const pressed = event.target.closest("[data-copy]");
  if (!pressed) return;
  try {
    await copy(pressed.closest("figure").querySelector("code"));
    at("state").textContent = "copied";
  } catch {
    at("state").textContent = "the browser does not allow to copy: select the code";
  }
});

const settings = stored(SETTINGS, {});
for (const name of KEPT) {
  if (typeof settings[name] === "string") at(name).value = settings[name];
  at(name).addEventListener("change", () => {
    store(SETTINGS, Object.fromEntries(KEPT.map(one => [one, at(one).value])));
  });
}
at("history").open = matchMedia("(min-width: 64rem)").matches;
const last = stored(OPEN, "");
show(conversations().find(one => one.id === last) || chat);
askModel().catch(() => {});
