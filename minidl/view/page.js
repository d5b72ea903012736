"use strict";
// The page: the chosen call and tensor, their description, zooming and moving.

const $ = id => document.getElementById(id);
const packedRecordings = JSON.parse($("data").textContent);
const ranked = packedRecordings.length > 1 && packedRecordings.every(packed => packed.rank >= 0);  // else they begin together
const beginning = Math.min(...packedRecordings.map(packed => packed.began));
const recordings = packedRecordings.map(packed => new Recording(packed, ranked ? packed.began - beginning : 0));
const chosen = {call: 0, subject: -1, which: 0};
const view = {from: 0, to: 1, axis: "time", only: -1};  // only: the band that a click on the legend has left, or -1
const pictures = [];
const escape = text => String(text).replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[c]));

function describe(recording, i) {
  const {subjects, words} = recording, name = words[subjects.name[i]];
  return `tensor ${subjects.id[i]}${name ? ` (${KINDS[subjects.kind[i]]}, ${name})` : ` (${KINDS[subjects.kind[i]]})`}, ${formatBytes(subjects.bytes[i])}`;
}

function tellEvent(recording, event) {
  const {events, words} = recording, i = events.subject[event], took = formatSeconds(events.end[event] - events.start[event]);
  const what = i >= 0 ? `tensor ${recording.subjects.id[i]}` : formatBytes(events.bytes[event]);
  switch (events.kind[event]) {
    case CALL: return `${recording.exchanges(event) ? "exchange in " : ""}call ${events.call[event]}, ${words[events.op[event]]}, ${took}`;
    case REPLAY: return `replay of ${words[events.op[event]]} for call ${events.call[event]}, ${took}`;
    case COPY_OUT: return `copy out of ${what}, ${formatBytes(events.bytes[event])}, ${took}`;
    case COPY_IN: return `copy in of ${what}, ${formatBytes(events.bytes[event])}, ${took}`;
    case MOVE: return `move of ${what} to another address, ${took}`;
    default: return "the end of the iteration";
  }
}

const subjectLink = (recording, i) => `<a data-subject="${i}" tabindex="0">${escape(describe(recording, i))}</a>`;
const callLink = (recording, call) => `<a data-call="${call}" tabindex="0">#${call}${call < recording.callCount ? ` ${escape(recording.words[recording.calls.op[call]])}` : " (end)"}</a>`;
const rows = pairs => `<table>${pairs.filter(([, text]) => text !== "").map(([name, text]) => `<tr><th scope="row">${name}</th><td>${text}</td></tr>`).join("")}</table>`;
const some = (list, tell, most = 40) => list.slice(0, most).map(tell).join("<br>") + (list.length > most ? `<br>and ${list.length - most} more` : "");

function tellCall(recording, call) {
  if (call >= recording.callCount) return "<h2>The end of the iteration</h2>";
  const {calls, events, words} = recording, event = recording.launch[call];
  const launched = events.kind[event] === CALL && events.call[event] === call;
  const waited = launched ? recording.waited[event] : 0, copy = recording.waitedFor[event];
  const inputs = [...new Set(calls.inputs.of(call))], others = recording.eventsOf[call].filter(e => e !== event);
  return `<h2>Call ${call}: ${escape(words[calls.op[call]])}</h2>` + rows([
    ["starts", launched ? formatSeconds(events.start[event]) : "launches nothing"],
    ["takes", formatSeconds(calls.seconds[call])],
    ["waited", !waited ? "not at all" : `${formatSeconds(waited)}, ${copy >= 0 ? `for the ${escape(tellEvent(recording, copy))}` : "for the host"}`],
    ["workspace", launched && events.workspace[event] ? formatBytes(events.workspace[event]) : ""],
    ["memory", `${formatBytes(events.used[event])} of ${formatBytes(recording.budget)}${events.largest[event] < 0 ? "" : `; largest free piece ${formatBytes(events.largest[event])}`}`],
    ["reads", some(inputs, i => subjectLink(recording, i))],
    ["makes", some(calls.outputs.of(call), i => subjectLink(recording, i))],
    ["writes", some(calls.writes.of(call), i => subjectLink(recording, i))],
    ["last use of", some(calls.frees.of(call), i => subjectLink(recording, i))],
    ["done for it", some(others, e => escape(tellEvent(recording, e)), 12)]]);
}

function tellSubject(recording, i) {
  const {stays, events, subjects, words, accesses} = recording, call = chosen.call, made = recording.maker[i];
  const before = accesses[i].filter(c => c <= call), last = before[before.length - 1];
  const fates = ["stayed to the end", "was freed", "went to the host", "was dropped", "was donated to an output", "was moved to another address", ""];
  const states = ["", "being copied out", "being copied in"], at = e => Math.min(events.call[e], recording.callCount);
  const visit = s => `from ${callLink(recording, at(stays.first[s]))}${stays.end[s] < recording.count ? ` to ${callLink(recording, at(stays.end[s]))}` : ""} at ${formatBytes(stays.offset[s])}${[states[stays.state[s]], fates[stays.fate[s]]].filter(Boolean).map(text => `, ${text}`).join("")}`;
  return `<h2>${escape(describe(recording, i))}</h2>` + rows([
    ["number", subjects.id[i]], ["layer", escape(words[subjects.name[i]])], ["line", subjects.line ? escape(words[subjects.line[i]]) : ""],
    ["status", recording.statusAt(i, recording.launch[call])], ["accesses so far", `${before.length} of ${accesses[i].length}`],
    ["last access", last === undefined ? "not accessed yet" : formatSeconds(events.time[recording.launch[last]])],
    ["made by", made < 0 ? "existed before" : callLink(recording, made)],
    ["inputs", made < 0 ? "" : some([...new Set(recording.calls.inputs.of(made))], each => subjectLink(recording, each), 8)],
    ["accesses", accesses[i].slice(0, 60).map(c => callLink(recording, c)).join(", ") + (accesses[i].length > 60 ? " and more" : "")]]) +
    (recording.remarks.has(i) ? `<h3>Why it leaves</h3>${recording.remarks.get(i).map(text => `<p>${escape(text)}</p>`).join("")}` : "") +
    `<h3>Its addresses</h3>${some(recording.staysOf[i], visit)}`;
}

function said(recording, event) {
  const {heights, bands, events} = recording;
  const parts = bands.map((name, band) => [heights[band][event], name]).filter(([bytes]) => bytes > 0).sort((a, b) => b[0] - a[0]);
  return `At call ${Math.min(events.call[event], recording.callCount)}, ${formatSeconds(events.time[event])}: ${formatBytes(events.used[event])} of ${formatBytes(recording.budget)} in use. ` +
    `${parts.slice(0, 5).map(([bytes, name]) => `${name} ${formatBytes(bytes)}`).join(", ")}. On the host: ${formatBytes(events.host[event])}.`;
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawNow(); });
}

function drawNow() {
  recordings.forEach((recording, which) => {
    const event = recording.launch[Math.min(chosen.call, recording.callCount)];
    const subject = which === chosen.which ? chosen.subject : twin(recording);
    for (const picture of pictures.filter(each => each.recording === recording)) picture.draw(event, subject);
    $(`said${which}`).textContent = said(recording, event);
  });
  const recording = recordings[chosen.which], event = recording.launch[Math.min(chosen.call, recording.callCount)];
  $("where").textContent = `#${chosen.call} ${recording.words[recording.calls.op[chosen.call]] || "end"}, ${formatSeconds(recording.events.time[event])}`;
  document.documentElement.dataset.ready = "true";
}

// The same tensor in another recording.
function twin(recording) {
  const id = chosen.subject < 0 ? undefined : recordings[chosen.which].subjects.id[chosen.subject];
  return id === undefined || !recording.number.has(id) ? -1 : recording.number.get(id);
}

const LISTED = 12;  // tensors in the list of the largest

function tellLargest(recording) {
  const {subjects, words, largest: leaving} = recording;
  if (!leaving.length) return "<p>No tensor leaves the device. Click a rectangle for a tensor's life.</p>";
  const name = i => `<a data-subject="${i}" tabindex="0">${subjects.id[i]}${words[subjects.name[i]] ? ` ${escape(words[subjects.name[i]])}` : ""}</a>`;
  return `<h2>The largest tensors that leave</h2><table class="largest"><tr><th>tensor</th><th>bytes</th><th>how</th><th>stalls</th></tr>` +
    leaving.slice(0, LISTED).map(({subject, way, stalled}) => `<tr><td>${name(subject)}</td><td>${formatBytes(subjects.bytes[subject])}</td><td>${way}</td>` +
      `<td>${stalled ? formatSeconds(stalled) : ""}</td></tr>`).join("") +
    `</table><p class="said">${leaving.length} tensors leave. A click shows a tensor's life.</p>`;
}

function tell() {
  const recording = recordings[chosen.which], others = recordings.filter(each => each !== recording);
  $("details").innerHTML = (chosen.subject >= 0 ? tellSubject(recording, chosen.subject) : tellLargest(recording)) +
    tellCall(recording, chosen.call) + others.map(other => twin(other) < 0 ? "" : `<h2>${ranked ? `On rank ${other.rank}` : `In ${escape(other.title)}`}</h2>${tellSubject(other, twin(other))}`).join("");
}

function choose(call, subject = chosen.subject, which = chosen.which) {
  const most = recordings[which].callCount;
  Object.assign(chosen, {call: Math.max(0, Math.min(most, Math.round(call) || 0)), subject, which});
  $("call").max = most;
  $("call").value = chosen.call;
  const tensor = subject >= 0 ? `&tensor=${recordings[which].subjects.id[subject]}` : "";
  const hash = `#call=${chosen.call}${tensor}${which ? `&of=${which}` : ""}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
  tell();
  redraw();
}

function followLink() {
  const wanted = new URLSearchParams(location.hash.slice(1)), which = recordings[wanted.get("of")] ? Number(wanted.get("of")) : 0;
  const subject = recordings[which].number.get(wanted.get("tensor"));
  const accesses = subject === undefined ? [] : recordings[which].accesses[subject];
  choose(Number(wanted.has("call") ? wanted.get("call") : accesses[0] || 0), subject === undefined ? -1 : subject, which);
}

function most() {
  return Math.max(...recordings.map(each => view.axis === "time" ? each.seconds : each.callCount + 1)) || 1;
}

function show(from, to) {
  const all = most(), width = Math.min(all, Math.max(to - from, all / 1e5));
  view.from = Math.max(0, Math.min(all - width, from));
  view.to = view.from + width;
  redraw();
}

function zoom(factor, around) {
  show(around - (around - view.from) * factor, around + (view.to - around) * factor);
}

function zoomAtCall(factor) {
  const recording = recordings[chosen.which], at = recording.x(recording.launch[chosen.call], view.axis);
  zoom(factor, at >= view.from && at <= view.to ? at : (view.from + view.to) / 2);
}

function watch(picture) {
  const {canvas} = picture, tip = $("tip");
  let held = null;
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    if (event.shiftKey) { const by = Math.sign(event.deltaY || event.deltaX) * (view.to - view.from) / 10; show(view.from + by, view.to + by); }
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, picture.at(event.offsetX));
  }, {passive: false});
  canvas.addEventListener("pointerdown", event => { held = {x: event.offsetX, from: view.from, moved: false}; if (event.isTrusted) canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", event => {
    if (held) {
      const by = picture.at(held.x) - picture.at(event.offsetX);
      held.moved = held.moved || Math.abs(event.offsetX - held.x) > 3;
      if (held.moved) show(held.from + by, held.from + by + view.to - view.from);
    }
    const text = held && held.moved ? "" : picture.tip(event.offsetX, event.offsetY);
    tip.hidden = !text;
    tip.textContent = text;
    tip.style.left = `${Math.min(event.clientX + 12, window.innerWidth - 300)}px`;
    tip.style.top = `${event.clientY + 12}px`;
  });
  canvas.addEventListener("pointerup", event => {
    const moved = held && held.moved;
    held = null;
    if (moved) return;
    const recording = picture.recording, at = recording.eventAt(picture.at(event.offsetX), view.axis);
    const hit = picture.hit(event.offsetX, event.offsetY);
    choose(recording.events.call[at], hit >= 0 ? hit : chosen.subject, recordings.indexOf(recording));
    if (event.pointerType === "touch" && window.innerWidth <= 900) $("details").scrollIntoView({behavior: "smooth"});
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
}
