"use strict";
// A page's data, unpacked, and what follows from it: the bytes of each category at every event, a tensor's life.
// Knows no canvas and no document, so that it also runs without a browser.

const TYPES = {i32: Int32Array, f64: Float64Array, u8: Uint8Array};
const CALL = 0, REPLAY = 1, COPY_OUT = 2, COPY_IN = 3, MOVE = 4, BOUNDARY = 5;
const STAYS = 0, FREED = 1, SWAPPED = 2, DROPPED = 3, OVERWRITTEN = 4, MOVED = 5, CHANGED = 6;
const PARAMETER = 0, GRADIENT = 1, OPTIMIZER = 2, ACTIVATION = 3, OTHER = 4;
const KINDS = ["parameter", "gradient", "optimizer state", "activation", "other tensor"];
const MOST_GROUPS = 12;
const EXCHANGES = new Set(["sum_ranks", "sum_rows", "gather_ranks", "gather_rows_"]);  // operations between ranks

function column(packed) {
  const text = atob(packed.data), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new TYPES[packed.type](bytes.buffer);
}

function columns(packed) {
  return Object.fromEntries(Object.entries(packed).map(
    ([name, each]) => [name, each.type ? column(each) : each.ends ? lists(each) : each]));
}

function lists(packed) {
  const ends = column(packed.ends), flat = column(packed.flat);
  return {of: i => Array.from(flat.subarray(i ? ends[i - 1] : 0, ends[i]))};
}

// One recorded step. Bands are the categories of the stack of memory, from below; each has its bytes at every event.
class Recording {
  constructor(packed, offset = 0) {  // offset: seconds from the beginning of the page's clock to that of the step
    Object.assign(this, {offset, rank: packed.rank, title: packed.title, budget: packed.budget, limit: packed.limit, unmanaged: packed.unmanaged, host: packed.host,
                         facts: packed.facts, words: packed.words, remarks: new Map()});
    for (const name of ["subjects", "calls", "events", "stays", "steps"]) this[name] = columns(packed[name]);
    for (const [subject, text] of packed.remarks)
      this.remarks.set(subject, [...(this.remarks.get(subject) || []), text]);
    for (const name of ["start", "end", "time"]) this.events[name] = this.events[name].map(seconds => seconds + offset);
    this.count = this.events.kind.length;
    this.callCount = this.calls.op.length;
    this.seconds = this.events.time[this.count - 1];
    this.group();
    this.index();
    this.waits();
    this.stack();
    this.largest = this.leaving();
  }

  // Layers are grouped by the first parts of their names: as many parts as give few groups. A name may end with the line
  // of the program, after a comma; a name that is only a line is a group by itself.
  group() {
    const {kind, name} = this.subjects;
    const layers = [...new Set(Array.from(name).filter((_, i) => kind[i] === ACTIVATION))].map(n => this.words[n]);
    const head = (layer, depth) => /:\d+$/.test(layer) && !layer.includes(", ") ? layer : layer.split(", ")[0].split(".").slice(0, depth).join(".");
    const cut = depth => new Set(layers.map(layer => head(layer, depth)));
    let depth = 1;
    while (depth < 4 && cut(depth + 1).size <= MOST_GROUPS && cut(depth + 1).size > cut(depth).size) depth++;
    const names = [...cut(depth)];
    this.share = Math.ceil(names.length / MOST_GROUPS) || 1;  // neighbours in one group, if there are too many groups
    const number = new Map(names.map((each, i) => [each, Math.floor(i / this.share)]));
    this.groups = [];
    names.forEach((each, i) => {
      const at = Math.floor(i / this.share);
      this.groups[at] = i % this.share ? `${this.groups[at].split(" to ")[0]} to ${each}` : each;
    });
    const groupOf = this.words.map(word => number.get(head(word, depth)));
    this.layerOf = i => groupOf[name[i]] === undefined ? -1 : groupOf[name[i]];
    this.bands = ["parameters", "optimizer state", "gradients", "other tensors",
                  ...this.groups.map(each => `activations of ${each}`), "being copied out", "being copied in",
                  "workspace", "free but split"];
    this.first = {parameters: 0, optimizer: 1, gradients: 2, other: 3, activations: 4};
    const next = 4 + this.groups.length;
    Object.assign(this.first, {leaving: next, arriving: next + 1, workspace: next + 2, split: next + 3});
  }

  bandOf(stay) {
    const {subject, state} = this.stays, i = subject[stay], kind = this.subjects.kind[i];
    if (state[stay] === 1) return this.first.leaving;
    if (state[stay] === 2) return this.first.arriving;
    if (kind === ACTIVATION) return this.first.activations + Math.max(0, this.layerOf(i));
    return [this.first.parameters, this.first.gradients, this.first.optimizer, 0, this.first.other][kind];
  }

  index() {
    const {events, stays, subjects, calls} = this;
    this.launch = new Int32Array(this.callCount + 1).fill(-1);
    this.eventsOf = Array.from({length: this.callCount + 1}, () => []);
    for (let e = 0; e < this.count; e++) {
      const call = Math.min(events.call[e], this.callCount);
      if (events.kind[e] === CALL) this.launch[call] = e;
      this.eventsOf[call].push(e);
    }
    this.launch[this.callCount] = this.count - 1;
    for (let call = this.callCount; call-- > 0;)  // a call that launches nothing is at the next event
      if (this.launch[call] < 0) this.launch[call] = this.launch[call + 1];
    this.order = new Float64Array(this.count + 1);  // each call is one unit wide, however much was issued for it
    for (const list of this.eventsOf) list.forEach((e, n) => {
      this.order[e] = Math.min(events.call[e], this.callCount) + n / list.length;
    });
    for (let e = 1; e < this.count; e++) this.order[e] = Math.max(this.order[e], this.order[e - 1]);
    this.order[this.count] = this.callCount + 1;
    const each = () => Array.from({length: subjects.id.length}, () => []);
    this.staysOf = each();
    this.accesses = each();
    this.maker = new Int32Array(subjects.id.length).fill(-1);
    for (let s = 0; s < stays.subject.length; s++) this.staysOf[stays.subject[s]].push(s);
    this.finalFate = new Uint8Array(stays.fate);
    for (const list of this.staysOf)
      for (let n = list.length - 2; n >= 0; n--)
        if (stays.fate[list[n]] >= MOVED) this.finalFate[list[n]] = this.finalFate[list[n + 1]];
    for (let call = 0; call < this.callCount; call++) {
      for (const i of calls.outputs.of(call)) this.maker[i] = call;
      for (const i of new Set([...calls.inputs.of(call), ...calls.outputs.of(call)])) this.accesses[i].push(call);
    }
    this.number = new Map(subjects.id.map((id, i) => [id, i]));
    this.compute = [];
    for (let e = 0; e < this.count; e++)
      if ([CALL, REPLAY, MOVE].includes(events.kind[e]) && !this.exchanges(e)) this.compute.push(e);
    const all = Array.from({length: this.count}, (_, e) => e);
    this.exchanged = all.filter(e => this.exchanges(e));  // in the order that all ranks share
    this.awaited = all.filter(e => events.kind[e] === COPY_OUT || events.kind[e] === COPY_IN || this.exchanges(e));
  }

  exchanges(event) { return this.events.kind[event] === CALL && EXCHANGES.has(this.words[this.events.op[event]]); }

  // Bytes of every band at every event, and a check that they add up to the arena's count.
  stack() {
    const {events, stays, count} = this, n = this.bands.length;
    this.heights = Array.from({length: n}, () => new Float64Array(count));
    for (let s = 0; s < stays.subject.length; s++) {
      const height = this.heights[this.bandOf(s)];
      height[stays.first[s]] += stays.size[s];
      if (stays.end[s] < count) height[stays.end[s]] -= stays.size[s];
    }
    this.wrong = 0;
    for (let e = 0; e < count; e++) {
      let sum = 0;
      for (let band = 0; band < this.first.workspace; band++) {
        if (e) this.heights[band][e] += this.heights[band][e - 1];
        sum += this.heights[band][e];
      }
      if (sum !== events.used[e]) this.wrong++;
      this.heights[this.first.workspace][e] = events.workspace[e];
      const free = events.largest[e] < 0 ? 0 : this.budget - events.used[e];
      this.heights[this.first.split][e] = Math.max(0, free - Math.max(events.largest[e], events.workspace[e]));
    }
  }

  // The last event before a place on the axis, "time" in seconds or "calls".
  eventAt(x, axis) {
    const values = axis === "time" ? this.events.time : this.order;
    let low = 0, high = this.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (values[middle] <= x) low = middle; else high = middle - 1;
    }
    return low;
  }

  x(event, axis) {
    return axis === "time" ? (event < this.count ? this.events.time[event] : this.seconds) : this.order[event];
  }

  // How long the compute stream waited before each piece of its work, and the copy or exchange that it waited for.
  waits() {
    const {start, end} = this.events, sorted = [...this.awaited].sort((a, b) => end[a] - end[b]);
    this.waited = new Float64Array(this.count);
    this.waitedFor = new Int32Array(this.count).fill(-1);
    let free = this.offset;
    for (const event of this.compute) {
      const gap = start[event] - free;
      if (gap > 1e-12) {
        this.waited[event] = gap;
        let low = 0, high = sorted.length;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (end[sorted[middle]] <= start[event] + 1e-12) low = middle + 1; else high = middle;
        }
        const copy = low ? sorted[low - 1] : -1;
        if (copy >= 0 && start[event] - end[copy] <= 0.1 * gap) this.waitedFor[event] = copy;
      }
      free = Math.max(free, end[event]);
    }
  }

  // A tensor's status at an event, in words.
  statusAt(i, event) {
    const {first, end, state, fate} = this.stays;
    let last = -1;
    for (const s of this.staysOf[i]) {
      if (first[s] <= event && event < end[s]) return ["on the device", "being copied out", "being copied in"][state[s]];
      if (end[s] <= event) last = s;
    }
    if (last < 0) return "not yet on the device";
    return {[FREED]: "freed", [SWAPPED]: "on the host", [DROPPED]: "dropped, to be recomputed",
            [OVERWRITTEN]: "donated"}[fate[last]] || "gone";
  }

  // The tensors that are swapped out or dropped, the largest first: how they leave, and seconds of stalls that end with
  // one of their copies.
  leaving() {
    const {events, subjects, stays} = this, found = new Map();
    stays.fate.forEach((fate, s) => {
      if (fate !== SWAPPED && fate !== DROPPED) return;
      const i = stays.subject[s], way = fate === SWAPPED ? "swapped" : "dropped", one = found.get(i);
      if (!one) found.set(i, {subject: i, way, stalled: 0});
      else if (one.way !== way) one.way = "both";
    });
    this.waitedFor.forEach((copy, e) => {
      if (copy >= 0 && !this.exchanges(copy) && found.has(events.subject[copy])) found.get(events.subject[copy]).stalled += this.waited[e];
    });
    return [...found.values()].sort((a, b) => subjects.bytes[b.subject] - subjects.bytes[a.subject] || a.subject - b.subject);
  }

  find(text) {
    const wanted = text.trim().toLowerCase().replace(/^#/, "");
    if (!wanted) return {subjects: [], calls: []};
    const exact = this.number.get(wanted);
    const subjects = exact !== undefined ? [exact] : [];
    this.subjects.id.forEach((_, i) => {
      if (i !== exact && this.words[this.subjects.name[i]].toLowerCase().includes(wanted)) subjects.push(i);
    });
    const bytes = i => i === exact ? Infinity : this.subjects.bytes[i];
    subjects.sort((a, b) => bytes(b) - bytes(a) || a - b);
    const calls = [];
    for (let call = 0; call < this.callCount; call++)
      if (this.words[this.calls.op[call]].toLowerCase().includes(wanted)) calls.push(call);
    return {subjects, calls};
  }
}

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (at < 4 && bytes >= 1023.95) { bytes /= 1024; at++; }
  return `${at ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

function formatSeconds(seconds) {
  const size = Math.abs(seconds);
  if (size < 1e-10) return "0 s";
  if (size >= 1) return `${seconds.toFixed(2)} s`;
  return size >= 1e-3 ? `${(1e3 * seconds).toFixed(1)} ms` : `${(1e6 * seconds).toFixed(1)} us`;
}

if (typeof module !== "undefined") module.exports = {Recording, formatBytes, formatSeconds};
