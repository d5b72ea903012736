"use strict";
// Pictures of a recording on canvases. Each draws a range of the axis, and tells what is at a point.

const SAFE = {parameters: "#0072b2", optimizer: "#56b4e9", gradients: "#d55e00", other: "#8a8f98",
              leaving: "#cc79a7", arriving: "#f0e442", workspace: "#e69f00", host: "#56b4e9", exchange: "#009e73"};
const FATES = [["stays", "#8a8f98"], ["freed after its last use", "#56b4e9"], ["swapped out", "#cc79a7"],
               ["dropped, to be recomputed", "#e69f00"], ["donated to an output", "#009e73"]];
const GREENS = [["#c9ecd0", "#0b4f2c"], ["#e0ea8f", "#5f6d12"]], RAMP = ["#00204d", "#31446b", "#666870", "#958f78", "#cbba69", "#ffea46"];
const LEFT = 64, TOP = 6, BOTTOM = 18;

function mix(a, b, share) {
  const part = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  const hex = i => Math.round(part(a, i) + share * (part(b, i) - part(a, i))).toString(16).padStart(2, "0");
  return `#${hex(0)}${hex(1)}${hex(2)}`;
}

function ramp(share) {
  const at = Math.min(RAMP.length - 1.001, Math.max(0, share * (RAMP.length - 1))), i = Math.floor(at);
  return mix(RAMP[i], RAMP[i + 1], at - i);
}

function bandColour(recording, band) {
  const {first, groups} = recording;
  for (const name of ["parameters", "optimizer", "gradients", "other", "leaving", "arriving", "workspace"])
    if (band === first[name]) return SAFE[name];
  if (band === first.split) return "split";
  const n = band - first.activations;  // neighbours differ in hue, distant layers in brightness
  return mix(...GREENS[n % 2], groups.length > 1 ? n / (groups.length - 1) : 0.5);
}

function ticks(from, to, most) {
  const raw = (to - from) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= raw), found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

// Tick marks on an axis of bytes, at whole binary units.
function byteTicks(most) {
  let step = 1;
  while (most / step > 6) step *= 2;
  return Array.from({length: Math.floor(most / step) + 1}, (_, n) => n * step);
}

// A canvas with a horizontal axis, which all pictures share: view is {from, to, axis}.
class Picture {
  constructor(recording, view, height, label) {
    Object.assign(this, {recording, view, height});
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", label);
    this.context = this.canvas.getContext("2d");
    this.kept = document.createElement("canvas");
  }

  // The background changes only with the view and is kept; a new choice is drawn over it.
  draw(cursor, chosen) {
    this.begin();
    const {from, to, axis} = this.view, {context, canvas, kept} = this;
    const key = [from, to, axis, canvas.width, canvas.height, this.colours, this.view.only, this.ink.back].join();
    if (this.key === key) {
      context.drawImage(kept, 0, 0, this.width, this.height);
    } else {
      this.paint();
      kept.width = canvas.width;
      kept.height = canvas.height;
      kept.getContext("2d").drawImage(canvas, 0, 0);
      this.key = key;
    }
    this.mark(chosen);
    const px = this.eventX(cursor);
    if (px < LEFT || px > this.width - 6) return;
    context.strokeStyle = this.ink.mark;
    context.beginPath(); context.moveTo(px + 0.5, 0); context.lineTo(px + 0.5, this.height - BOTTOM); context.stroke();
  }

  mark() {}

  // How opaque a band is: a click on the legend leaves one band and fades the others.
  opacity(band) { return this.view.only < 0 || this.view.only === band ? 1 : 0.12; }

  begin() {
    const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth || 800;
    this.canvas.style.height = `${this.height}px`;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(this.height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    this.width = width;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, this.height);
    const style = getComputedStyle(document.documentElement);
    this.ink = Object.fromEntries(["fore", "soft", "line", "back", "mark"].map(
      name => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.context.font = "11px system-ui, sans-serif";
    this.from = this.recording.eventAt(this.view.from, this.view.axis);
    this.to = Math.min(this.recording.count - 1, this.recording.eventAt(this.view.to, this.view.axis) + 1);
  }

  px(x) { return LEFT + (x - this.view.from) / (this.view.to - this.view.from) * (this.width - LEFT - 6); }
  at(px) { return this.view.from + (px - LEFT) / (this.width - LEFT - 6) * (this.view.to - this.view.from); }
  eventX(event) { return this.px(this.recording.x(event, this.view.axis)); }

  fill(colour) {
    if (colour !== "split") return colour;
    if (!this.hatch || this.hatchInk !== this.ink.soft) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const context = tile.getContext("2d");
      context.strokeStyle = this.hatchInk = this.ink.soft;
      context.beginPath(); context.moveTo(0, 6); context.lineTo(6, 0); context.stroke();
      this.hatch = this.context.createPattern(tile, "repeat");
    }
    return this.hatch;
  }

  clip() {
    this.context.save();
    this.context.beginPath();
    this.context.rect(LEFT, 0, this.width - LEFT - 6, this.height - BOTTOM);
    this.context.clip();
  }

  axes(levels) {
    const {context, ink, view} = this, base = this.height - BOTTOM;
    context.restore();
    context.fillStyle = ink.soft;
    context.strokeStyle = ink.line;
    context.textAlign = "center";
    for (const x of ticks(view.from, view.to, Math.max(2, Math.min(8, Math.floor(this.width / 110))))) {
      const px = this.px(x);
      context.beginPath(); context.moveTo(px, base); context.lineTo(px, base + 3); context.stroke();
      context.fillText(view.axis === "time" ? formatSeconds(x) : `#${Math.round(x)}`, px, base + 14);
    }
    context.textAlign = "right";
    for (const [y, text] of levels) context.fillText(text, LEFT - 4, y + 4);
  }
}

// Bytes by category, stacked.
class Stack extends Picture {
  constructor(recording, view, height) {
    super(recording, view, height, "Memory over time by category");
    const peak = recording.events.used.reduce((a, b) => Math.max(a, b), 0);
    this.most = 1.1 * Math.max(recording.limit <= 4 * peak ? recording.limit : peak, peak,
                                recording.unmanaged <= 2 * recording.budget ? recording.unmanaged : 0);
  }

  y(bytes) { return this.height - BOTTOM - bytes / this.most * (this.height - BOTTOM - TOP); }

  paint() {
    this.clip();
    const {recording, context, from, to} = this, {heights, bands, events} = recording;
    const points = [];  // with more events than pixels, one per pixel: the one with the most bytes
    for (let e = from, last = -1; e <= to; e++) {
      const px = Math.round(2 * this.eventX(e)) / 2;
      if (px === last && events.used[e] <= events.used[points[points.length - 1][1]]) continue;
      if (px === last) points.pop();
      points.push([last = px, e]);
    }
    points.push([this.eventX(to + 1), to]);
    const below = new Float64Array(points.length);
    bands.forEach((_, band) => {
      const height = heights[band];
      if (!points.some(([, e]) => height[e])) return;
      context.beginPath();
      context.moveTo(points[0][0], this.y(below[0]));
      for (let n = 0; n + 1 < points.length; n++) {
        const y = this.y(below[n] + height[points[n][1]]);
        context.lineTo(points[n][0], y); context.lineTo(points[n + 1][0], y);
      }
      for (let n = points.length - 1; n--;) {
        const y = this.y(below[n]);
        context.lineTo(points[n + 1][0], y); context.lineTo(points[n][0], y);
        below[n] += height[points[n][1]];
      }
      context.closePath();
      context.globalAlpha = this.opacity(band);
      context.fillStyle = this.fill(bandColour(recording, band));
      context.fill();
      context.strokeStyle = this.ink.back;
      context.lineWidth = 0.5;
      context.stroke();
    });
    context.globalAlpha = context.lineWidth = 1;
    this.line(recording.limit, "budget", this.ink.fore, []);
    if (recording.unmanaged) this.line(recording.unmanaged, `unmanaged peak ${formatBytes(recording.unmanaged)}`, this.ink.mark, [6, 4]);
    this.axes(byteTicks(this.most).map(bytes => [this.y(bytes), formatBytes(bytes)]));
  }

  line(bytes, text, colour, dash) {
    if (!bytes) return;
    const y = Math.max(TOP, this.y(bytes)), {context} = this, above = bytes > this.most;
    context.strokeStyle = context.fillStyle = colour;
    context.setLineDash(above ? [2, 6] : dash);
    context.beginPath(); context.moveTo(LEFT, y); context.lineTo(this.width, y); context.stroke();
    context.setLineDash([]);
    context.textAlign = dash.length ? "left" : "right";
    const place = [above ? `${text}, above this picture` : text, dash.length ? LEFT + 6 : this.width - 10, y + 11];
    context.strokeStyle = this.ink.back;  // an edge, so that the text is readable on any colour
    context.lineWidth = 3;
    context.strokeText(...place);
    context.lineWidth = 1;
    context.fillText(...place);
  }

  bandAt(event, y) {
    let below = 0;
    const {heights, bands} = this.recording;
    for (let band = 0; band < bands.length; band++) {
      below += heights[band][event];
      if (y >= this.y(below)) return band;
    }
    return -1;
  }

  tip(px, y) {
    const event = this.recording.eventAt(this.at(px), this.view.axis), band = this.bandAt(event, y);
    return band < 0 ? `free in one piece, of ${formatBytes(this.recording.budget)}`
      : `${this.recording.bands[band]}: ${formatBytes(this.recording.heights[band][event])}`;
  }

  hit() { return -1; }
}

// Addresses over time: one rectangle per stay.
class Addresses extends Picture {
  constructor(recording, view, height) {
    super(recording, view, height, "Addresses over time, a rectangle for each stay of a tensor");
    this.colours = "band";
    this.palette = recording.bands.map((_, band) => bandColour(recording, band));
    this.layers = recording.groups.map((_, n) => ramp(n / Math.max(1, recording.groups.length - 1)));
  }

  y(offset) { return this.height - BOTTOM - offset / this.recording.budget * (this.height - BOTTOM - TOP); }

  colour(stay) {
    const {recording} = this, {subject} = recording.stays;
    if (this.colours === "band") return this.palette[recording.bandOf(stay)];
    if (this.colours === "fate") return FATES[Math.min(4, recording.finalFate[stay])][1];
    const layer = recording.layerOf(subject[stay]);
    return layer < 0 ? SAFE.other : this.layers[layer];
  }

  paint() {
    this.clip();
    const {context, from, to, recording} = this, {first, end, offset, size} = recording.stays;
    let last = "";
    for (let s = 0; s < first.length && first[s] <= to; s++) {
      if (end[s] <= from) continue;
      const [x, y, width, height] = this.box(offset[s], size[s], first[s], end[s]);
      const colour = this.colour(s);
      context.globalAlpha = this.opacity(recording.bandOf(s));
      if (colour !== last) context.fillStyle = last = colour;
      context.fillRect(x, y, Math.max(width, 0.5), Math.max(height, 0.5));
      if (width > 3 && height > 3) {
        context.strokeStyle = this.ink.back;
        context.lineWidth = 0.5;
        context.strokeRect(x, y, width, height);
      }
    }
    const {workspace, workspaceAt} = recording.events;
    context.globalAlpha = this.opacity(recording.first.workspace);
    context.fillStyle = SAFE.workspace;
    for (let e = from; e <= to; e++)
      if (workspace[e]) context.fillRect(...this.box(workspaceAt[e], workspace[e], e, e + 1).map((n, i) => i > 1 ? Math.max(n, 0.5) : n));
    context.lineWidth = context.globalAlpha = 1;
    this.axes(byteTicks(recording.budget).map(bytes => [this.y(bytes), formatBytes(bytes)]));
  }

  mark(chosen) {
    if (chosen < 0) return;
    const {first, end, offset, size} = this.recording.stays;
    this.clip();
    this.context.strokeStyle = this.ink.mark;
    this.context.lineWidth = 2;
    for (const s of this.recording.staysOf[chosen])
      if (first[s] <= this.to && end[s] > this.from) this.context.strokeRect(...this.box(offset[s], size[s], first[s], end[s]));
    this.context.restore();
  }

  box(offset, size, first, end) {
    const x = this.eventX(first), y = this.y(offset + size);
    return [x, y, this.eventX(end) - x, this.y(offset) - y];
  }

  hit(px, y) {
    const {first, end, offset, size, subject} = this.recording.stays;
    const event = this.recording.eventAt(this.at(px), this.view.axis);
    for (let s = 0; s < first.length; s++)
      if (first[s] <= event && event < end[s] && y <= this.y(offset[s]) && y >= this.y(offset[s] + size[s])) return subject[s];
    return -1;
  }

  tip(px, y) {
    const subject = this.hit(px, y);
    return subject < 0 ? "free" : describe(this.recording, subject);
  }
}

// The work of the streams, and the contents of host memory.
class Lanes extends Picture {
  constructor(recording, view, height) {
    super(recording, view, height, "Computation, copies out, copies in, and host memory over time");
    this.rows = ["compute", "copy out", "copy in", ...(recording.exchanged.length ? ["exchange"] : []), "host"];
  }

  row(n) {
    const each = (this.height - BOTTOM - TOP) / this.rows.length;
    return [TOP + n * each, each - 3];
  }

  // The row of an event: exchanges between ranks have one of their own.
  rowOf(event) {
    const kind = this.recording.events.kind[event];
    return kind === COPY_OUT ? 1 : kind === COPY_IN ? 2 : this.recording.exchanges(event) ? 3 : 0;
  }

  across(event) {
    const {start, end} = this.recording.events;
    if (this.view.axis === "time") return [this.px(start[event]), this.px(end[event])];
    return [this.eventX(event), this.eventX(event + 1)];
  }

  paint() {
    this.clip();
    const {context, recording} = this, {kind, host, start} = recording.events;
    const colours = {[CALL]: SAFE.parameters, [REPLAY]: SAFE.workspace, [MOVE]: this.ink.soft,
                     [COPY_OUT]: SAFE.leaving, [COPY_IN]: SAFE.arriving};
    for (let e = 0; e < recording.count; e++) {
      if (kind[e] === BOUNDARY) continue;
      const [y, height] = this.row(this.rowOf(e)), [x, end] = this.across(e);
      if (end < LEFT || x > this.width) continue;
      context.fillStyle = recording.exchanges(e) ? SAFE.exchange : colours[kind[e]];
      context.fillRect(x, y, Math.max(0.6, end - x - (end - x > 4 ? 0.7 : 0)), height);
      if (recording.waited[e] && this.view.axis === "time") {
        context.fillStyle = this.fill("split");
        const from = this.px(start[e] - recording.waited[e]);
        context.fillRect(from, y + height / 4, x - from, height / 2);
      }
    }
    const [y, height] = this.row(this.rows.length - 1), most = Math.max(1, host.reduce((a, b) => Math.max(a, b), 0));
    context.fillStyle = SAFE.host;
    for (let e = this.from; e <= this.to; e++) {
      const x = this.eventX(e), tall = host[e] / most * height;
      if (tall) context.fillRect(x, y + height - tall, Math.max(0.6, this.eventX(e + 1) - x), tall);
    }
    this.axes(this.rows.map((name, n) => [this.row(n)[0] + this.row(n)[1] / 2, name]));
  }

  eventUnder(px, y) {
    const {kind} = this.recording.events;
    for (let e = this.recording.count - 1; e >= 0; e--) {
      const [top, height] = this.row(this.rowOf(e));
      const [x, end] = this.across(e);
      if (kind[e] !== BOUNDARY && y >= top && y < top + height && px >= x && px <= Math.max(end, x + 1)) return e;
    }
    return -1;
  }

  hit(px, y) {
    const event = this.eventUnder(px, y);
    return event < 0 ? -1 : this.recording.events.subject[event];
  }

  tip(px, y) {
    const event = this.eventUnder(px, y);
    if (event >= 0) return tellEvent(this.recording, event);
    const at = this.recording.eventAt(this.at(px), this.view.axis);
    return y >= this.row(this.rows.length - 1)[0] ? `on the host: ${formatBytes(this.recording.events.host[at])}` : "";
  }
}

// Ranks side by side on one clock. An exchange begins on a rank when that rank comes to it, and moves bytes once the last
// one has come: arrows lead from the last to the others, whose time until then is hatched.
class RanksPicture extends Picture {
  constructor(recordings, view, height) {
    super(recordings[0], view, height, "Computation of the ranks, and their exchanges, on one clock");
    this.ranks = recordings;
    this.exchanges = recordings[0].exchanged.map((_, n) => {  // the events of one exchange, and the rank that came last
      const events = recordings.map(each => each.exchanged[n]).filter(e => e !== undefined);
      const comes = events.map((e, rank) => recordings[rank].events.start[e]);
      return {events, comes, last: comes.indexOf(Math.max(...comes))};
    }).filter(each => each.events.length === recordings.length);
  }

  row(rank) {
    const each = (this.height - BOTTOM - TOP) / this.ranks.length;
    return [TOP + rank * each, each * 0.6];
  }

  across(rank, event) {
    const {events, order} = this.ranks[rank];
    return this.view.axis === "time" ? [this.px(events.start[event]), this.px(events.end[event])] : [this.px(order[event]), this.px(order[event + 1])];
  }

  paint() {
    this.clip();
    const {context, width} = this;
    this.ranks.forEach((recording, rank) => {
      const [y, height] = this.row(rank);
      for (const e of recording.compute) {
        const [x, end] = this.across(rank, e);
        if (end < LEFT || x > width) continue;
        context.fillStyle = recording.events.kind[e] === REPLAY ? SAFE.workspace : recording.events.kind[e] === MOVE ? this.ink.soft : SAFE.parameters;
        context.fillRect(x, y, Math.max(0.6, end - x - (end - x > 4 ? 0.7 : 0)), height);
      }
    });
    let drawn = -Infinity;
    for (const {events, comes, last} of this.exchanges) {
      const all = this.view.axis === "time" ? this.px(comes[last]) : this.across(last, events[last])[0];
      events.forEach((e, rank) => {
        const [y, height] = this.row(rank), [x, end] = this.across(rank, e);
        if (end < LEFT || x > width) return;
        context.fillStyle = SAFE.exchange;
        context.fillRect(x, y, Math.max(0.6, end - x), height);
        if (this.view.axis !== "time" || all - x < 1) return;
        context.fillStyle = this.ink.back;
        context.fillRect(x, y, all - x, height);
        context.fillStyle = this.fill("split");
        context.fillRect(x, y, all - x, height);
      });
      if (this.view.axis !== "time" || all < LEFT || all > width || all - drawn < 5) continue;  // arrows would run together
      drawn = all;
      context.strokeStyle = context.fillStyle = this.ink.fore;
      events.forEach((_, rank) => { if (rank !== last) this.arrow(all, last, rank); });
    }
    this.axes(this.ranks.map((each, rank) => [this.row(rank)[0] + this.row(rank)[1] / 2, `rank ${each.rank}`]));
  }

  arrow(x, from, to) {
    const {context} = this, [start, tall] = this.row(from), [end, height] = this.row(to), down = to > from;
    const y = down ? end : end + height, tail = down ? start + tall : start, head = down ? -4 : 4;
    context.beginPath(); context.moveTo(x, tail); context.lineTo(x, y); context.stroke();
    context.beginPath(); context.moveTo(x, y); context.lineTo(x - 2.5, y + head); context.lineTo(x + 2.5, y + head); context.fill();
  }

  rankAt(y) {
    return this.ranks.findIndex((_, rank) => y >= this.row(rank)[0] && y < this.row(rank)[0] + this.row(rank)[1]);
  }

  tip(px, y) {
    const rank = this.rankAt(y);
    if (rank < 0) return "";
    const number = this.exchanges.findIndex(({events}) => {
      const [x, end] = this.across(rank, events[rank]);
      return px >= x - 1 && px <= Math.max(end, x + 1);
    });
    const {events, words} = this.ranks[rank];
    if (number < 0) return tellEvent(this.ranks[rank], this.ranks[rank].eventAt(this.at(px), this.view.axis));
    const {events: each, comes, last} = this.exchanges[number], late = comes[last] - comes[rank];
    return `exchange ${number} of ${this.exchanges.length}, ${words[events.op[each[rank]]]}, on rank ${this.ranks[rank].rank}: ` +
      (rank === last ? "the last to come" : `${formatSeconds(late)} before rank ${this.ranks[last].rank}, the last`);
  }

  hit() { return -1; }
}
