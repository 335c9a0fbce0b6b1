// Values under the pointer, zoom by dragging, and the loss over time or samples. The page stands without it.
(() => {
  "use strict";
  const WIDTH = 2000, HEIGHT = 1000;
  const UNITS = {
    s: [[7200, 3600, "h"], [180, 60, "min"], [1, 1, "s"], [1e-3, 1e-3, "ms"], [0, 1e-6, "µs"]],
    steps: [[1e6, 1e6, "M"], [2e4, 1e3, "k"], [0, 1, ""]],
    bytes: [[2 ** 40, 2 ** 40, "TiB"], [2 ** 30, 2 ** 30, "GiB"], [2 ** 20, 2 ** 20, "MiB"], [1024, 1024, "KiB"], [0, 1, "B"]],
  };
  UNITS.samples = UNITS.steps;
  UNITS["bytes/s"] = UNITS.bytes.map(([above, by, name]) => [above, by, name + "/s"]);
  const scaleOf = (value, unit) =>
    (UNITS[unit] || [[0, 1, unit]]).find(([above]) => Math.abs(value) >= above);

  function words(value, unit) {
    if (value === null || value === undefined) return "n/a";
    if (unit === "steps" || unit === "samples") return Math.round(value).toLocaleString("en-US") + " " + unit;
    const [, by, name] = scaleOf(value, unit);
    return (+(value / by).toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 12 }) + (name ? " " + name : "");
  }

  function ticks(low, high, unit, most) {
    const fits = ([above, by]) => high >= above && (high - low) / by >= 0.05;
    const [, by, name] = UNITS[unit].find(fits) || UNITS[unit].at(-1);
    const raw = (high - low) / by / most, power = 10 ** Math.floor(Math.log10(raw));
    let step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * (1 - 1e-9));
    if (unit === "steps" && by === 1) step = Math.max(1, step);
    const made = [];
    for (let i = Math.ceil(low / by / step - 1e-9); i * step * by <= high * (1 + 1e-12); i++)
      made.push([i * step * by, i === 0 ? "0" : (+(i * step).toPrecision(10)).toLocaleString("en-US") + (name ? " " + name : "")]);
    return made;
  }

  function make(parent, tag, className) {
    const made = document.createElement(tag);
    made.className = className;
    parent.append(made);
    return made;
  }

  class Chart {
    constructor(plot) {
      const [low, high, unit] = plot.dataset.x.split(",");
      this.plot = plot;
      this.area = plot.querySelector(".area");
      this.svg = plot.querySelector("svg");
      this.data = JSON.parse(plot.dataset.hover);
      this.xs = this.data.x;
      this.range = this.whole = [+low, +high];
      this.unit = unit;
      this.area.addEventListener("pointermove", (event) => this.show(event));
      this.area.addEventListener("pointerleave", () => this.hide());
      this.area.addEventListener("pointerdown", (event) => { this.from = this.at(event); });
      window.addEventListener("pointerup", (event) => this.release(event));
      this.area.addEventListener("dblclick", () => this.zoom(this.whole));
    }
    at(event) {
      const box = this.area.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    }
    value(at) { return this.range[0] + at * (this.range[1] - this.range[0]); }
    place(value) { return (value - this.range[0]) / (this.range[1] - this.range[0]); }

    nearest(value) {
      let low = 0, high = this.xs.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.xs[middle] <= value) low = middle; else high = middle - 1;
      }
      return low;
    }
    show(event) {
      const at = this.at(event), i = this.nearest(this.value(at));
      this.cursor ||= make(this.area, "div", "cursor");
      this.tip ||= make(this.area, "div", "tip");
      this.cursor.style.left = 100 * at + "%";
      this.tip.style.left = at < 0.5 ? `calc(${100 * at}% + 12px)` : "";
      this.tip.style.right = at < 0.5 ? "" : `calc(${100 - 100 * at}% + 12px)`;
      this.tip.replaceChildren();
      const title = this.unit === "steps" ? "step " + this.xs[i].toLocaleString("en-US") : words(this.xs[i], this.unit);
      this.row(title, "");
      for (const [name, unit, values] of this.data.series) this.row(name, words(values[i], unit));
      this.cursor.hidden = this.tip.hidden = false;
      if (this.from !== undefined) this.brushTo(at);
    }
    row(name, value) {
      const row = make(this.tip, "div", "");
      make(row, "span", "").textContent = name;
      make(row, "span", "").textContent = value;
    }
    hide() {
      if (this.cursor) this.cursor.hidden = this.tip.hidden = true;
    }
    brushTo(at) {
      this.brush ||= make(this.area, "div", "brush");
      const [left, right] = [Math.min(at, this.from), Math.max(at, this.from)];
      Object.assign(this.brush.style, { left: 100 * left + "%", width: 100 * (right - left) + "%" });
    }
    release(event) {
      if (this.from === undefined) return;
      const ends = [this.from, this.at(event)].sort((a, b) => a - b);
      this.from = undefined;
      this.brush?.remove();
      this.brush = undefined;
      if (ends[1] - ends[0] > 0.01) this.zoom(ends.map((end) => this.value(end)));
    }
    zoom(range) {
      this.range = range;
      const width = this.whole[1] - this.whole[0];
      const left = ((range[0] - this.whole[0]) / width) * WIDTH;
      this.svg.setAttribute("viewBox", `${left} 0 ${Math.max(1e-3, ((range[1] - range[0]) / width) * WIDTH)} ${HEIGHT}`);
      this.area.classList.toggle("zoomed", range !== this.whole);
      for (const note of this.area.querySelectorAll(".note")) note.hidden = range !== this.whole;
      this.label();
    }
    label() {
      const axis = this.plot.querySelector(".x");
      axis.replaceChildren();
      for (const [value, text] of ticks(this.range[0], this.range[1], this.unit, 6)) {
        const span = make(axis, "span", this.place(value) > 0.96 ? "end" : "");
        span.textContent = text;
        span.style.left = 100 * this.place(value) + "%";
      }
    }
    // Draw the one line of the chart over other x values of the same points.
    over(unit) {
      const [low, high, log] = this.plot.dataset.y.split(",").map(Number);
      const scaled = log ? Math.log10 : (value) => value;
      this.steps ||= this.data.x;
      this.xs = unit === "steps" ? this.steps : this.data.others[unit];
      this.unit = unit;
      this.whole = [this.xs[0], this.xs[this.xs.length - 1]];
      let command = "M", path = "";
      this.data.series[0][2].forEach((value, i) => {
        if (value === null) { command = "M"; return; }
        const x = ((this.xs[i] - this.whole[0]) / (this.whole[1] - this.whole[0])) * WIDTH;
        const y = (1 - (scaled(value) - scaled(low)) / (scaled(high) - scaled(low))) * HEIGHT;
        path += command + x.toFixed(1) + " " + y.toFixed(1);
        command = "L";
      });
      this.plot.querySelector(".x-name").textContent = { steps: "step", s: "time" }[unit] || unit;
      this.svg.querySelector(".curve").setAttribute("d", path);
      for (const mark of this.plot.querySelectorAll(".bad")) mark.style.display = unit === "steps" ? "" : "none";
      this.zoom(this.whole);
    }
  }

  document.documentElement.classList.add("js");
  const charts = new Map([...document.querySelectorAll(".plot[data-hover]")].map((plot) => [plot, new Chart(plot)]));
  for (const group of document.querySelectorAll(".toggle")) {
    const chart = charts.get(group.parentElement.querySelector(".plot"));
    const buttons = [...group.querySelectorAll("button")];
    for (const button of buttons) {
      const unit = button.dataset.unit;
      button.hidden = unit !== "steps" && !(unit in chart.data.others);
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        chart.over(unit);
      });
    }
    group.hidden = false;
  }
})();
