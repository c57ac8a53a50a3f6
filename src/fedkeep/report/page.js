"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const night = matchMedia("(prefers-color-scheme: dark)");
  const fine = matchMedia("(pointer: fine)").matches;
  const config = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset" };
  const plots = new Map(); // id -> {box, choice}
  const hidden = new Set(); // labels of series that are switched off
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const copyOf = (value) => JSON.parse(JSON.stringify(value));

  // The figure in the colours of the page, light or dark.
  function themed(figure) {
    const { data, layout } = copyOf(figure);
    const dark = night.matches && !root.classList.contains("print");
    const ink = css("--ink"), grid = css("--grid");
    layout.font.color = ink;
    layout.dragmode = fine ? "zoom" : false;
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: css("--card"), bordercolor: css("--line"), font: { color: ink } };
    for (const [key, axis] of Object.entries(layout)) {
      if (/^[xy]axis/.test(key)) Object.assign(axis, { gridcolor: grid, linecolor: grid, zerolinecolor: css("--soft"), zerolinewidth: 1 });
      if (/^[xy]axis/.test(key) && !fine) axis.fixedrange = true;
    }
    if (layout.plot_bgcolor !== "rgba(0,0,0,0)") layout.plot_bgcolor = css("--empty");
    for (const shape of layout.shapes || []) shape.line.color = ink;
    for (const trace of data) {
      if (trace.type === "heatmap") trace.colorscale = (dark ? page.scales.dark : page.scales.light)[trace.meta];
      if (trace.legendgroup) trace.visible = !hidden.has(trace.legendgroup);
    }
    return { data, layout };
  }

  // Names along an axis of `count` cells, thinned out until they fit; marked ones come first.
  function fit(axis, count, room, need) {
    if (!axis.tickvals || !count) return;
    const cell = room / count;
    const names = axis.tickvals.map((place, i) => ({ place, name: axis.ticktext[i], marked: axis.ticktext[i].startsWith("★") }));
    const kept = [];
    for (const one of [...names.filter((name) => name.marked), ...names.filter((name) => !name.marked)]) {
      const free = ({ place, name }) => Math.abs(place - one.place) * cell >= (need(name) + need(one.name)) / 2;
      if (kept.every(free)) kept.push(one);
    }
    kept.sort((left, right) => left.place - right.place);
    axis.tickvals = kept.map((one) => one.place);
    axis.ticktext = kept.map((one) => one.name);
  }

  function draw(id) {
    const plot = plots.get(id);
    const { data, layout } = themed(page.cards[id][plot.choice].figure);
    if (plot.heat) moveTo(plot, data, layout);
    if (data[0].type === "heatmap") {
      const { l, r, t, b } = layout.margin;
      fit(layout.xaxis, data[0].x.length, (plot.box.clientWidth || 600) - l - r, (name) => 4 + 7 * name.length);
      fit(layout.yaxis, data[0].y.length, layout.height - t - b, () => 13);
    }
    return Plotly.react(plot.box, data, layout, config);
  }
  const drawAll = () => plots.forEach((plot, id) => { plot.drawn = true; draw(id); });
  const drawAgain = () => plots.forEach((plot, id) => plot.drawn && draw(id));

  // -- the slider: each step replaces the cells, the names and the frames of every heatmap

  const heat = page.heat;
  const state = { step: heat.rounds.length - 1, seed: String(heat.seeds[0]) };

  function numbers(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Array.from({ length: bytes.length / 2 }, (_, i) => {
      const whole = view.getUint16(2 * i, true);
      return whole === 65535 ? null : whole / 10000;
    });
  }

  function frameOf(panel) {
    const run = heat.panels[panel].runs[state.seed];
    const frame = run && run.frames[heat.rounds[state.step]];
    if (!frame) return null;
    if (!frame.rows) {
      const before = numbers(frame.before), local = numbers(frame.local), width = frame.data.length;
      const name = (k) => (k in run.majority ? `client ${k}, mostly label ${run.majority[k]}` : `client ${k}`);
      frame.rows = frame.models.map((_, i) => local.slice(i * width, (i + 1) * width));
      frame.lost = frame.rows.map((row) => row.map((value, k) => (value === null ? null : +(before[k] - value).toFixed(4))));
      frame.x = frame.data.map(name);
      frame.y = frame.models.map(name);
    }
    return frame;
  }

  const ticks = (clients) => ({ tickvals: clients.map((_, place) => place), ticktext: clients.map(String) });

  function outlines(frame) {
    const n = frame.models.length, ink = css("--ink");
    const own = frame.models.map((_, i) => `M${i - 0.5},${i - 0.5}H${i + 0.5}V${i + 0.5}H${i - 0.5}Z`).join("");
    const shapes = [{ type: "path", path: own, line: { color: ink, width: 1.2 } }];
    if (frame.data.length > n) {
      shapes.push({ type: "line", x0: n - 0.5, x1: n - 0.5, y0: -0.5, y1: n - 0.5, line: { color: ink, width: 2 } });
    }
    return shapes;
  }

  function moveTo(plot, data, layout) {
    const frame = frameOf(plot.panel);
    const cells = frame ? (plot.heat === "forgetting" ? frame.lost : frame.rows) : [[null]];
    Object.assign(data[0], { z: cells, x: frame ? frame.x : [""], y: frame ? frame.y : [""] });
    Object.assign(layout.xaxis, ticks(frame ? frame.data : []));
    Object.assign(layout.yaxis, ticks(frame ? frame.models : []));
    layout.shapes = frame ? outlines(frame) : [];
    const gone = document.getElementById(`gone-${plot.panel}`);
    const round = heat.rounds[state.step];
    if (gone) gone.textContent = frame ? "" : `Round ${round} of seed ${state.seed} is not recorded here.`;
  }

  let asked = 0;
  function slide() {
    const range = document.getElementById("round"), round = heat.rounds[state.step];
    range.value = state.step;
    range.setAttribute("aria-valuetext", `round ${round}`);
    document.getElementById("round-shown").textContent = `round ${round}`;
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(() => plots.forEach((plot, id) => plot.heat && plot.drawn && draw(id)));
  }

  function prepareSlider() {
    const range = document.getElementById("round"), seed = document.getElementById("seed");
    const play = document.getElementById("play");
    if (!range) return;
    let timer = 0;
    const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
    range.addEventListener("input", () => { stop(); state.step = Number(range.value); slide(); });
    if (seed) seed.addEventListener("change", () => { state.seed = seed.value; slide(); });
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (state.step === heat.rounds.length - 1) state.step = -1;
      play.textContent = "Stop";
      timer = setInterval(() => {
        state.step += 1;
        slide();
        if (state.step >= heat.rounds.length - 1) stop();
      }, 450);
    });
  }

  // -- switches, legend, copy, print

  function prepareSwitches() {
    for (const menu of document.querySelectorAll("select[data-card]")) {
      menu.addEventListener("change", () => {
        const id = menu.dataset.card;
        plots.get(id).choice = menu.selectedIndex;
        const text = document.getElementById(`text-${id}`);
        if (text) text.textContent = page.cards[id][menu.selectedIndex].text;
        draw(id);
      });
    }
    for (const button of document.querySelectorAll(".legend button[data-series]")) {
      button.addEventListener("click", () => {
        const label = button.dataset.series;
        hidden.has(label) ? hidden.delete(label) : hidden.add(label);
        for (const twin of document.querySelectorAll(".legend button[data-series]")) {
          twin.setAttribute("aria-pressed", String(!hidden.has(twin.dataset.series)));
        }
        plots.forEach((plot, id) => !plot.heat && plot.drawn && draw(id));
      });
    }
  }

  async function copy(button) {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      getSelection().selectAllChildren(source);
      document.execCommand("copy");
      getSelection().removeAllRanges();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  function preparePrint() {
    addEventListener("beforeprint", () => {
      root.classList.add("print");
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      drawAll();
      plots.forEach((plot) => Plotly.relayout(plot.box, { autosize: false, width: plot.heat ? 320 : 660 }));
    });
    addEventListener("afterprint", () => {
      root.classList.remove("print");
      plots.forEach((plot) => Plotly.relayout(plot.box, { autosize: true, width: null }));
      drawAll();
    });
  }

  // -- one figure after another, those in sight first, so that the page can be read while the rest is drawn

  const later = window.requestIdleCallback ? (task) => requestIdleCallback(task, { timeout: 100 }) : (task) => setTimeout(task);

  function fromSight(plot) {
    const { top, bottom } = plot.box.getBoundingClientRect();
    return Math.max(0, top - innerHeight, -bottom);
  }

  function drawNext() {
    const waiting = [...plots].filter(([, plot]) => !plot.drawn);
    if (!waiting.length) {
      root.dataset.drawn = String(Math.round(performance.now()));
      return;
    }
    const [id, plot] = waiting.reduce((best, one) => (fromSight(one[1]) < fromSight(best[1]) ? one : best));
    plot.drawn = true;
    draw(id);
    later(drawNext);
  }

  function begin() {
    for (const box of document.querySelectorAll(".plot[data-card]")) {
      const { card, heat: what, panel } = box.dataset;
      plots.set(card, { box, choice: 0, heat: what, panel: Number(panel), drawn: false });
    }
    prepareSwitches();
    prepareSlider();
    preparePrint();
    for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button));
    night.addEventListener("change", drawAgain);
    root.dataset.ready = String(Math.round(performance.now()));
    drawNext();
  }
  begin();
})();
