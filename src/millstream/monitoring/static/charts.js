// Charts over time, by uPlot. A chart is made once, and given new data at every look.

import { html, useEffect, useRef } from "/static/vendor/htm-preact.mjs";
import uPlot from "/static/vendor/uPlot.mjs";
import { COLOURS, LINES, PHASES, clock, number, span } from "/static/words.js";

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axes(format) {
  const own = { stroke: () => ink("--quiet"), grid: { stroke: () => ink("--line"), width: 1 }, ticks: { stroke: () => ink("--line") } };
  return [
    { ...own, space: 90, values: (_, ticks) => ticks.map((t) => clock(t * 1000)) },
    { ...own, size: 70, values: (_, ticks) => ticks.map(format) },
  ];
}

export function Chart({ label, series, data, format, height = 210, bars = false, isMoment = false }) {
  const place = useRef(null), plot = useRef(null), shape = series.map((one) => one.label).join("|");
  useEffect(() => {
    const element = place.current;
    const options = {
      width: Math.max(260, element.clientWidth), height, series: [{ label: "time", value: (_, t) => (t === null ? "–" : clock(t * 1000)) }, ...series],
      axes: axes(format), scales: { x: { time: true }, y: { range: (_, min, max) => (isMoment ? [min === max ? min - 1000 : min, max] : [0, max > 0 ? max * 1.06 : 1]) } },
      cursor: { drag: { x: false, y: false } }, legend: { live: true },
    };
    plot.current = new uPlot(options, data, element);
    const watch = new ResizeObserver(() => plot.current && plot.current.setSize({ width: Math.max(260, element.clientWidth), height }));
    watch.observe(element);
    const theme = matchMedia("(prefers-color-scheme: dark)"), redraw = () => plot.current && plot.current.redraw();
    theme.addEventListener("change", redraw);
    return () => { watch.disconnect(); theme.removeEventListener("change", redraw); plot.current.destroy(); plot.current = null; };
  }, [shape, bars]);
  useEffect(() => { if (plot.current) plot.current.setData(data); }, [data]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${place}></div>`;
}

// Epochs as stacked phases: each series is drawn from the bottom, the tallest first.
export function EpochChart({ bars }) {
  const used = PHASES.filter((name) => bars.some((one) => one.phases[name] > 0.005));
  const others = [...new Set(bars.flatMap((one) => Object.keys(one.phases)))].filter((name) => !PHASES.includes(name));
  const names = [...used, ...others];
  const times = bars.map((one) => one.at / 1000);
  const sums = bars.map(() => 0);
  const stacked = names.map((name) => bars.map((one, at) => (sums[at] += one.phases[name] || 0)));
  const colour = (name) => COLOURS[PHASES.indexOf(name)] || "#777777";
  const series = names.map((name, at) => ({
    label: name, fill: colour(name), stroke: colour(name), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.9, 40], align: 1 }),
    value: (_, v, s, i) => (i === null || i === undefined || !bars[i] ? "–" : `${(bars[i].phases[name] || 0).toFixed(1)} ms`),
  })).reverse();
  const tell = bars[bars.length - 1];
  const label = tell ? `stacked phases of the last epochs; the newest took ${span(tell.millis)}` : "no epoch yet";
  return html`<${Chart} key=${names.join("|")} label=${label} series=${series} data=${[times, ...[...stacked].reverse()]} format=${(v) => span(v)} bars=${true} />`;
}

// Where nothing was seen for long, a line is not drawn through.
function withGaps(times, columns) {
  const steps = times.slice(1).map((t, at) => t - times[at]).sort((a, b) => a - b), usual = Math.max(2, 5 * (steps[Math.floor(steps.length / 2)] || 0));
  const kept = [[], ...columns.map(() => [])];
  times.forEach((t, at) => {
    if (at && t - times[at - 1] > usual) { kept[0].push(times[at - 1] + usual / 2); columns.forEach((_, of) => kept[of + 1].push(null)); }
    kept[0].push(t);
    columns.forEach((column, of) => kept[of + 1].push(column[at]));
  });
  return kept;
}

export function TimeChart({ times, lines, format, label, isMoment = false }) {
  const series = lines.map((one, at) => ({ label: one.name, stroke: LINES[at % LINES.length], width: 1.8, points: { show: false }, value: (_, v) => (v === null || v === undefined ? "–" : format(v)) }));
  return html`<${Chart} key=${lines.map((one) => one.name).join("|")} label=${label} series=${series} data=${withGaps(times.map((t) => t / 1000), lines.map((one) => one.values))} format=${format} isMoment=${isMoment} />`;
}

// Counts with what was expected of them, and where something began or ended.
export function ForecastChart({ rows, anomalies, name }) {
  const points = rows.filter((one) => Number.isFinite(one.at) && Number.isFinite(one.actual)).sort((a, b) => a.at - b.at);
  const marked = new Set(anomalies.filter((one) => one.event === "begin").map((one) => one.since));
  const at = points.map((one) => one.at / 1000);
  const nearest = points.map((one) => (marked.has(one.at) ? one.actual : null));
  const series = [
    { label: "actual", stroke: LINES[0], width: 1.8, points: { show: false }, value: (_, v) => number(v) },
    { label: "expected", stroke: LINES[4], width: 1.8, dash: [5, 3], points: { show: false }, value: (_, v) => (v === null ? "–" : v.toFixed(1)) },
    { label: "anomaly", stroke: LINES[1], width: 0, points: { show: true, size: 9, fill: LINES[1] }, paths: () => null, value: (_, v) => number(v) },
  ];
  const data = withGaps(at, [points.map((one) => one.actual), points.map((one) => (Number.isFinite(one.expected) ? one.expected : null)), nearest]);
  return html`<${Chart} label=${`what was counted of ${name}, and what was expected`} series=${series} data=${data} format=${(v) => number(v)} height=${180} />`;
}
