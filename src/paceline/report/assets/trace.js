// What ran when, drawn as far as it can be seen: cost goes with the width of the page, not with the number of events.
(async () => {
  "use strict";
  const source = document.getElementById("events");
  if (!source || !window.DecompressionStream) return;

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const [head, data] = source.textContent.split(" ");
  const about = JSON.parse(new TextDecoder().decode(bytes(head)));
  const unpacked = new Blob([bytes(data)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const numbers = new Uint32Array(await new Response(unpacked).arrayBuffer());
  const unit = about.unit_ns, whole = about.span_ns / unit;
  const names = about.names;

  // -- lanes: starts, ends, and how much ran before each event ------------------------------------------

  const strips = [...document.querySelectorAll("#lanes .strip")];
  const lanes = [];
  let at = 0;
  for (const [rank, own] of about.ranks)
    for (const [title, kind, count] of own) {
      const starts = new Float64Array(count), ends = new Float64Array(count), before = new Float64Array(count + 1);
      let now = 0, reached = 0;
      for (let i = 0; i < count; i++) {
        now += numbers[at + i];
        starts[i] = now;
        ends[i] = now + numbers[at + count + i];
        before[i + 1] = before[i] + Math.max(0, ends[i] - Math.max(reached, now));
        reached = Math.max(reached, ends[i]);
      }
      lanes.push({ rank, title, kind, count, starts, ends, before, name: numbers.subarray(at + 2 * count, at + 3 * count) });
      at += 3 * count;
    }

  // The first event that starts at or after a time.
  function first(list, time) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] < time) low = middle + 1; else high = middle;
    }
    return low;
  }

  // -- drawing ------------------------------------------------------------------------------------------

  let view = [0, whole], wanted = "", matching = null;
  let colours;
  function readColours() {
    const probe = document.createElement("i");
    document.body.append(probe);
    colours = names.map(([, kind]) => {
      probe.className = about.colours[kind];
      return getComputedStyle(probe).backgroundColor;
    });
    probe.remove();
  }

  function draw(lane) {
    const { canvas } = lane, ratio = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(canvas.clientWidth * ratio)), height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const paint = canvas.getContext("2d"), scale = width / (view[1] - view[0]);
    paint.clearRect(0, 0, width, height);
    let i = Math.max(0, first(lane.starts, view[0]) - 1);
    while (i < lane.count && lane.starts[i] < view[1]) {
      const left = (lane.starts[i] - view[0]) * scale, right = (lane.ends[i] - view[0]) * scale;
      const faint = matching && !matching[lane.name[i]];
      paint.fillStyle = colours[lane.name[i]];
      if (right - left >= 1) {
        paint.globalAlpha = faint ? 0.15 : 1;
        const gap = right - left > 4 ? 1 : 0;  // so that two in a row are seen to be two
        paint.fillRect(left, 0, right - left - gap, height);
        if (!faint && right - left > 60 && lane.kind === "gpu") label(paint, names[lane.name[i]][0], Math.max(0, left), Math.min(width, right), height, ratio);
        i++;
      } else {  // all that begin in this pixel at once, as strong as it is busy
        const pixel = Math.floor(left), until = view[0] + (pixel + 1) / scale;
        const next = Math.max(i + 1, first(lane.starts, until));
        const busy = Math.min(1, (lane.before[next] - lane.before[i]) * scale);
        let seen = !matching;
        if (matching) for (let k = i; k < next && k < i + 200 && !seen; k++) seen = matching[lane.name[k]] === 1;
        paint.globalAlpha = (seen ? 1 : 0.15) * Math.max(0.2, busy);
        paint.fillRect(pixel, 0, 1, height);
        i = next;
      }
    }
    paint.globalAlpha = 1;
  }

  function label(paint, text, left, right, height, ratio) {
    paint.save();
    paint.beginPath();
    paint.rect(left, 0, right - left - 4 * ratio, height);
    paint.clip();
    paint.font = `${11 * ratio}px system-ui, sans-serif`;
    paint.textBaseline = "middle";
    paint.fillStyle = "#fff";
    paint.shadowColor = "rgb(0 0 0 / 0.6)";
    paint.shadowBlur = 2 * ratio;
    paint.fillText(text, left + 4 * ratio, height / 2);
    paint.restore();
  }

  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      for (const lane of lanes) if (lane.seen !== false) draw(lane);
      ruler();
    });
  }

  // -- words --------------------------------------------------------------------------------------------

  function time(ns, digits = 4) {
    const [by, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([by]) => Math.abs(ns) >= by) || [1, "ns"];
    return +(ns / by).toPrecision(digits) + " " + name;
  }

  const axis = document.createElement("div");
  axis.className = "ruler";
  axis.innerHTML = '<div class="x"></div>';
  document.getElementById("lanes").append(axis);
  function ruler() {
    const row = axis.firstChild, length = (view[1] - view[0]) * unit, from = view[0] * unit;
    const raw = length / Math.max(3, row.clientWidth / 130), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
    const [by, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([by]) => from + length >= 2 * by || by === 1);
    row.replaceChildren();
    for (let t = Math.ceil(from / step) * step; t <= from + length; t += step) {
      const mark = document.createElement("span"), place = (t - from) / length;
      mark.textContent = (+(t / by).toPrecision(10)).toLocaleString("en-US", { maximumFractionDigits: 6 }) + " " + name;
      mark.style.left = 100 * place + "%";
      if (place > 0.95) mark.className = "end";
      row.append(mark);
    }
  }

  // -- moving -------------------------------------------------------------------------------------------

  function show(left, right) {
    const least = Math.min(whole, 20 / unit), length = Math.min(whole, Math.max(least, right - left));
    left = Math.min(whole - length, Math.max(0, left));
    view = [left, left + length];
    redraw();
  }
  function zoom(by, place = 0.5) {
    const length = view[1] - view[0], fixed = view[0] + place * length;
    show(fixed - place * length * by, fixed + (1 - place) * length * by);
  }

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.getElementById("lanes").append(tip);
  function row(name, value) {
    const made = document.createElement("div");
    for (const text of [name, value]) made.append(Object.assign(document.createElement("span"), { textContent: text }));
    tip.append(made);
  }
  function under(lane, place) {
    const when = view[0] + place * (view[1] - view[0]), slack = (view[1] - view[0]) / lane.canvas.clientWidth * 2;
    for (let i = first(lane.starts, when + slack) - 1, looked = 0; i >= 0 && looked < 50; i--, looked++)
      if (lane.ends[i] >= when - slack) return i;
    return -1;
  }
  function point(lane, event) {
    const box = lane.canvas.getBoundingClientRect(), around = document.getElementById("lanes").getBoundingClientRect();
    const i = under(lane, (event.clientX - box.left) / box.width);
    tip.hidden = i < 0;
    if (i < 0) return;
    tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: names[lane.name[i]][0] }));
    row(names[lane.name[i]][1], time((lane.ends[i] - lane.starts[i]) * unit));
    row(`${lane.rank}, ${lane.title}`, "from " + time(lane.starts[i] * unit, 7));
    const x = event.clientX - around.left;
    tip.style.left = x < around.width / 2 ? x + 14 + "px" : "";
    tip.style.right = x < around.width / 2 ? "" : around.width - x + 14 + "px";
    tip.style.top = box.bottom - around.top + 6 + "px";
  }

  lanes.forEach((lane, place) => {
    const canvas = document.createElement("canvas");
    lane.canvas = canvas;
    const drawing = strips[place].querySelector("svg");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", drawing.getAttribute("aria-label"));
    drawing.classList.add("printed");  // a canvas does not print at the width of the paper
    drawing.after(canvas);
    let from = null;
    const part = (event) => (event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = event.deltaX / canvas.clientWidth * (view[1] - view[0]);
        show(view[0] + by, view[1] + by);
      } else zoom(1.0015 ** event.deltaY, part(event));
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, ...view]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { from = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (from) {
        const by = (event.clientX - from[0]) / canvas.clientWidth * (from[2] - from[1]);
        show(from[1] - by, from[2] - by);
        tip.hidden = true;
      } else point(lane, event);
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("dblclick", (event) => zoom(0.25, part(event)));
  });

  const seeing = new IntersectionObserver((changes) => {
    for (const change of changes) lanes.find((lane) => lane.canvas === change.target).seen = change.isIntersecting;
    redraw();
  });
  for (const lane of lanes) seeing.observe(lane.canvas);

  for (const button of document.querySelectorAll("[data-zoom]"))
    button.addEventListener("click", () => {
      if (button.dataset.zoom === "all") show(0, whole); else zoom(button.dataset.zoom === "in" ? 0.5 : 2);
    });
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = 0.2 * (view[1] - view[0]);
    if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "ArrowLeft" && view[1] - view[0] < whole) show(view[0] - by, view[1] - by);
    else if (event.key === "ArrowRight" && view[1] - view[0] < whole) show(view[0] + by, view[1] + by);
  });

  const find = document.getElementById("find"), found = document.getElementById("found");
  find.addEventListener("input", () => {
    wanted = find.value.trim().toLowerCase();
    matching = wanted ? Uint8Array.from(names, ([name]) => name.toLowerCase().includes(wanted)) : null;
    let count = 0, length = 0;
    if (matching)
      for (const lane of lanes)
        for (let i = 0; i < lane.count; i++)
          if (matching[lane.name[i]]) { count++; length += lane.ends[i] - lane.starts[i]; }
    found.textContent = wanted ? `${count.toLocaleString("en-US")} events, ${time(length * unit)} in all` : "";
    redraw();
  });

  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
  readColours();
  document.documentElement.classList.add("js");
  redraw();
})();
