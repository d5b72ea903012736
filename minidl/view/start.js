"use strict";
// Builds the page and listens to it.

function legend(entries) {
  return `<div class="legend">${entries.map(([name, colour]) => `<span><i style="background:${colour === "split" ? "repeating-linear-gradient(135deg,var(--soft) 0 1px,transparent 1px 4px)" : colour}"></i>${escape(name)}</span>`).join("")}</div>`;
}

function build() {
  $("title").textContent = document.title;
  $("facts").textContent = recordings.length === 1 ? recordings[0].facts.map(([name, value]) => `${name}: ${value}`).join(" · ") : "";
  const wrong = recordings.reduce((sum, each) => sum + each.wrong, 0);
  document.documentElement.dataset.wrong = wrong;
  if (wrong) { $("wrong").hidden = false; $("wrong").textContent = `At ${wrong} events the stack is not what the arena counted.`; }
  const tall = recordings.length > 1 ? [150, 190, 96] : [230, 320, 120];
  recordings.forEach((recording, which) => {
    const section = document.createElement("section");
    section.innerHTML = (recordings.length > 1 ? `<h2>${escape(recording.title)}</h2><p class="said">${escape(recording.facts.map(([name, value]) => `${name}: ${value}`).join(" · "))}</p>` : "") + `<p class="said" id="said${which}" aria-live="polite"></p>`;
    const made = [new Stack(recording, view, tall[0]), new Addresses(recording, view, tall[1]), new Lanes(recording, view, tall[2])];
    const used = recording.bands.map((name, band) => [name, bandColour(recording, band), band]).filter(([, , band]) => recording.heights[band].some(bytes => bytes > 0));
    const below = [legend(used), "<div class='addresses'></div>", legend([["call", SAFE.parameters], ["replay", SAFE.workspace], ["move", "var(--soft)"], ["copy out", SAFE.leaving], ["copy in", SAFE.arriving], ["waiting", "split"], ["bytes on the host", SAFE.host]])];
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

// The steps of the run before the one that is shown, as a small picture and as a sentence.
function course(recording) {
  const {seconds, predicted} = recording.steps, count = seconds.length;
  if (count < 2) return "";
  const top = Math.max(...seconds, ...predicted) || 1, x = n => 10 + 1060 * n / (count - 1), y = s => 66 - 60 * s / top;
  const dots = Array.from(seconds, (s, n) => `<circle cx="${x(n).toFixed(1)}" cy="${y(s).toFixed(1)}" r="2.5" fill="${SAFE.parameters}"><title>step ${n + 1}: ${formatSeconds(s)}${predicted[n] >= 0 ? `, predicted ${formatSeconds(predicted[n])}` : ""}</title></circle>`);
  const marks = Array.from(predicted, (s, n) => s < 0 ? "" : `<path d="M${(x(n) - 4).toFixed(1)} ${y(s).toFixed(1)}h8" stroke="${SAFE.gradients}" stroke-width="2"/>`);
  const best = seconds.reduce((a, b) => Math.min(a, b));
  return `<h3>Steps of this run</h3><svg viewBox="0 0 1080 72" width="100%" height="72" role="img" aria-label="Seconds of each step">${marks.join("")}${dots.join("")}</svg>` +
    `<p class="said">${count} steps, the first took ${formatSeconds(seconds[0])}, the fastest ${formatSeconds(best)}, the last, which is shown, ${formatSeconds(seconds[count - 1])}. Dots: observed; dashes: what the plan predicted.</p>`;
}

function colourAddresses(colours) {
  for (const picture of pictures.filter(each => each instanceof Addresses)) {
    picture.colours = colours;
    const {groups} = picture.recording, place = picture.canvas.parentNode.querySelector(".addresses");
    place.innerHTML = colours === "fate" ? legend(FATES) : colours === "layer" ? legend(groups.map((name, n) => [name, ramp(n / Math.max(1, groups.length - 1))])) : "";
  }
  redraw();
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
