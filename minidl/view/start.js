"use strict";
// Builds the page and listens to it.

// An entry is [name, colour] or [name, colour, band]: a click on the latter leaves that band alone.
function legend(entries) {
  return `<div class="legend">${entries.map(([name, colour, band]) => `<span${band === undefined ? "" : ` data-band="${band}" role="button" tabindex="0" title="Show this category alone, or all again"`}><i style="background:${colour === "split" ? "repeating-linear-gradient(135deg,var(--soft) 0 1px,transparent 1px 4px)" : colour}"></i>${escape(name)}</span>`).join("")}</div>`;
}

function build() {
  $("title").textContent = document.title;
  $("facts").textContent = recordings.length === 1 ? recordings[0].facts.map(([name, value]) => `${name}: ${value}`).join(" · ") : "";
  const wrong = recordings.reduce((sum, each) => sum + each.wrong, 0);
  document.documentElement.dataset.wrong = wrong;
  if (wrong) { $("wrong").hidden = false; $("wrong").textContent = `At ${wrong} events the stack differs from the arena's count.`; }
  const tall = recordings.length > 1 ? [150, 190, 96] : [230, 320, 120];
  if (ranked) {
    const section = document.createElement("section"), picture = new RanksPicture(recordings, view, 30 + 44 * recordings.length);
    section.innerHTML = "<h2>Ranks on one clock</h2>";
    section.append(picture.canvas);
    section.insertAdjacentHTML("beforeend", legend([["call", SAFE.parameters], ["replay", SAFE.workspace], ["exchange", SAFE.exchange], ["waiting for the last rank", "split"]]) +
      "<p class=\"said\">An arrow leads from the rank that was the last to come to an exchange; the others have waited for it.</p>");
    $("pictures").append(section);
    pictures.push(picture);
    watch(picture);
  }
  recordings.forEach((recording, which) => {
    const section = document.createElement("section");
    section.innerHTML = (recordings.length > 1 ? `<h2>${ranked ? `Rank ${recording.rank}` : escape(recording.title)}</h2><p class="said">${escape(recording.facts.map(([name, value]) => `${name}: ${value}`).join(" · "))}</p>` : "") + `<p class="said" id="said${which}" aria-live="polite"></p>`;
    const made = [new Stack(recording, view, tall[0]), new Addresses(recording, view, tall[1]), new Lanes(recording, view, tall[2])];
    const used = recording.bands.map((name, band) => [name, bandColour(recording, band), band]).filter(([, , band]) => recording.heights[band].some(bytes => bytes > 0));
    const below = [legend(used), "<div class='addresses'></div>", legend([["call", SAFE.parameters], ["replay", SAFE.workspace], ["move", "var(--soft)"], ["copy out", SAFE.leaving], ["copy in", SAFE.arriving], ...(recording.exchanged.length ? [["exchange between ranks", SAFE.exchange]] : []), ["waiting", "split"], ["bytes on the host", SAFE.host]])];
    const names = ["Memory by category", "Addresses", "Streams and host memory"];
    made.forEach((picture, n) => {
      const heading = document.createElement("h3");
      heading.textContent = names[n];
      section.append(heading, picture.canvas);
      section.insertAdjacentHTML("beforeend", below[n]);
      pictures.push(picture);
      watch(picture);
    });
    section.insertAdjacentHTML("beforeend", course(recording));
    $("pictures").append(section);
  });
}

// The steps of the run up to the one that is shown: seconds, plan and bytes, as a picture and as a sentence.
function course(recording) {
  const {seconds, predicted, swapped, recomputed, plan = []} = recording.steps, count = seconds.length, left = 64;
  if (count < 2) return "";
  const most = values => values.reduce((a, b) => Math.max(a, b), 0), wide = (1070 - left) / count, planOf = n => plan[n] || 0;
  const top = Math.max(most(seconds), most(predicted)) || 1, bytes = Math.max(most(swapped), most(recomputed)) || 1;
  const x = n => left + (n + 0.5) * wide, y = s => 74 - 58 * s / top, bar = Math.min(12, wide / 3);
  const begins = [...seconds.keys()].filter(n => planOf(n) && planOf(n) !== planOf(n - 1));
  const spans = begins.map((n, i) => {
    const end = [...seconds.keys()].find(m => m > n && planOf(m) !== planOf(n)) || count, room = (end - n) * wide;
    return `<rect x="${left + n * wide}" y="0" width="${room}" height="124" fill="var(--line)" opacity="${i % 2 ? 0.2 : 0.5}"/>` +
      `<text x="${left + 4 + n * wide}" y="10" font-size="10" fill="var(--soft)">${room > 44 ? `plan ${planOf(n)}` : room > 18 ? planOf(n) : ""}</text>`;
  });
  const upright = (n, side, value, colour) => `<rect x="${x(n) + side * bar}" y="${124 - 44 * value / bytes}" width="${bar}" height="${44 * value / bytes}" fill="${colour}"/>`;
  const steps = Array.from(seconds, (s, n) => `<g class="step"><title>step ${n + 1}: ${formatSeconds(s)}${predicted[n] >= 0 ? `, predicted ${formatSeconds(predicted[n])}` : ""}${planOf(n) ? `, plan ${planOf(n)}` : ""}; copied ${formatBytes(swapped[n])}, recomputed ${formatBytes(recomputed[n])}</title>` +
    `<rect x="${left + n * wide}" y="0" width="${wide}" height="124" fill="transparent"/>` + upright(n, -1, swapped[n], SAFE.leaving) + upright(n, 0, recomputed[n], SAFE.workspace) +
    (predicted[n] < 0 ? "" : `<path d="M${x(n) - 4} ${y(predicted[n])}h8" stroke="${SAFE.gradients}" stroke-width="2"/>`) + `<circle cx="${x(n)}" cy="${y(s)}" r="2.5" fill="${SAFE.parameters}"/></g>`);
  const note = (px, py, text, anchor = "end") => `<text x="${px}" y="${py}" font-size="10" text-anchor="${anchor}" fill="var(--soft)">${text}</text>`;
  const every = Math.ceil(count / 20), axes = [note(left - 4, 20, formatSeconds(top)), note(left - 4, 76, "0 s"), note(left - 4, 90, formatBytes(bytes)), note(left - 4, 126, "0 B"),
    note(left - 4, 138, "step"), ...[...seconds.keys()].filter(n => n % every === 0).map(n => note(x(n), 138, n + 1, "middle"))];
  const best = seconds.reduce((a, b) => Math.min(a, b)), tried = new Set(begins.map(planOf)).size;
  const plans = !tried ? "No step followed a plan" : `${tried} plan${tried > 1 ? "s were" : " was"} followed, the first from step ${begins[0] + 1} on` + (begins.length > 1 ? `; another one took over in step${begins.length > 2 ? "s" : ""} ${some(begins.slice(1), n => n + 1, 12).replaceAll("<br>", ", ")}` : "");
  return `<h3>Steps of this run</h3><div class="wide"><svg class="course" viewBox="0 0 1080 142" width="100%" role="img" aria-label="Seconds${tried ? ", plan" : ""} and bytes of each step">${spans.join("")}${axes.join("")}${steps.join("")}</svg></div>` +
    legend([["observed seconds (dots)", SAFE.parameters], ...(tried ? [["predicted by the plan (dashes)", SAFE.gradients]] : []), ["bytes copied", SAFE.leaving], ["bytes recomputed", SAFE.workspace]]) +
    `<p class="said">${count} steps, the first took ${formatSeconds(seconds[0])}, the fastest ${formatSeconds(best)}, the last, which is shown, ${formatSeconds(seconds[count - 1])}. ${plans}.</p>`;
}

function colourAddresses(colours) {
  for (const picture of pictures.filter(each => each instanceof Addresses)) {
    picture.colours = colours;
    const {groups} = picture.recording, place = picture.canvas.parentNode.querySelector(".addresses");
    place.innerHTML = colours === "fate" ? legend(FATES) : colours === "layer" ? legend(groups.map((name, n) => [name, ramp(n / Math.max(1, groups.length - 1))])) : "";
  }
  redraw();
}

// Leave one band in full colour, or all of them again.
function filter(band) {
  view.only = view.only === band ? -1 : band;
  for (const entry of document.querySelectorAll("[data-band]"))
    entry.classList.toggle("faded", view.only >= 0 && Number(entry.dataset.band) !== view.only);
  redraw();
}

// Choose the first tensor that was found, which is the largest, else the first call.
function chooseFound() {
  const recording = recordings[chosen.which], {subjects, calls} = recording.find($("find").value);
  if (subjects.length) choose(recording.accesses[subjects[0]][0] || 0, subjects[0]);
  else if (calls.length) choose(calls[0], -1);
}

function find() {
  const recording = recordings[chosen.which], {subjects, calls} = recording.find($("find").value);
  $("details").innerHTML = `<h2>${subjects.length} tensors, ${calls.length} calls</h2><p>${some(subjects, i => subjectLink(recording, i), 100)}</p><p>${some(calls, call => callLink(recording, call), 100)}</p>`;
  if (subjects.length === 1 && !calls.length) choose(recording.accesses[subjects[0]][0] || 0, subjects[0]);
}

function follow(link) {
  const {call, subject} = link.dataset;
  if (call !== undefined) choose(Number(call));
  else if (subject !== undefined) choose(chosen.call, Number(subject));
}

function savePictures() {
  const shown = pictures.filter(each => each.recording === recordings[chosen.which]).map(each => each.canvas);
  const whole = document.createElement("canvas"), context = whole.getContext("2d");
  whole.width = shown[0].width;
  whole.height = shown.reduce((sum, each) => sum + each.height, 0);
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--back");
  context.fillRect(0, 0, whole.width, whole.height);
  shown.reduce((y, each) => { context.drawImage(each, 0, y); return y + each.height; }, 0);
  Object.assign(document.createElement("a"), {href: whole.toDataURL("image/png"), download: "memory.png"}).click();
}

function listen() {
  $("call").addEventListener("input", event => choose(Number(event.target.value)));
  $("axis").addEventListener("change", event => { view.axis = event.target.value; show(0, Infinity); });
  $("colours").addEventListener("change", event => colourAddresses(event.target.value));
  $("find").addEventListener("input", find);
  $("find").addEventListener("keydown", event => { if (event.key === "Enter") chooseFound(); });
  $("pictures").addEventListener("click", event => { const entry = event.target.closest("[data-band]"); if (entry) filter(Number(entry.dataset.band)); });
  $("pictures").addEventListener("keydown", event => { if (event.key === "Enter" && event.target.matches("[data-band]")) filter(Number(event.target.dataset.band)); });
  $("in").addEventListener("click", () => zoomAtCall(0.5));
  $("out").addEventListener("click", () => zoomAtCall(2));
  $("all").addEventListener("click", () => show(0, Infinity));
  $("png").addEventListener("click", savePictures);
  $("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    redraw();
  });
  $("details").addEventListener("click", event => { const link = event.target.closest("a"); if (link) follow(link); });
  $("details").addEventListener("keydown", event => { if (event.key === "Enter" && event.target.matches("a")) follow(event.target); });
  document.addEventListener("keydown", event => {
    if (event.target.matches("input, select") && event.target.id !== "call" || event.ctrlKey || event.metaKey) return;
    const keys = {ArrowLeft: () => choose(chosen.call - (event.shiftKey ? 10 : 1)), ArrowRight: () => choose(chosen.call + (event.shiftKey ? 10 : 1)),
                  "+": () => zoomAtCall(0.5), "=": () => zoomAtCall(0.5), "-": () => zoomAtCall(2), "0": () => show(0, Infinity), "/": () => $("find").focus()};
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  window.addEventListener("resize", redraw);
  window.addEventListener("hashchange", followLink);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

build();
listen();
show(0, Infinity);
followLink();
