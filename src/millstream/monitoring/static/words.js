// How numbers, times and states are written. Pure.

export const number = (n) => (n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en-US"));
export const rate = (n) => (n >= 100 ? number(n) : n >= 10 ? n.toFixed(1) : n > 0 ? n.toFixed(2) : "0");

export function bytes(n) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) { n /= 1000; at += 1; }
  return `${at ? n.toFixed(n < 10 ? 1 : 0) : n} ${units[at]}`;
}

export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 120) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

export function moment(ms) {
  if (ms === null || ms === undefined) return "–";
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().replace("T", " ").replace(/\.\d+Z$/, "");
}

export const clock = (ms) => moment(ms).slice(11);
export const ago = (ms, now) => (ms === null ? "–" : `${span(Math.max(0, now - ms))} ago`);

const GOOD = ["running", "ok", "ended", "drained"];
const BAD = ["failed", "killed", "replaced", "unreadable", "failing"];
const NEUTRAL = ["waiting", "new", "stopped", "idle"];
export const tone = (word) => (GOOD.includes(word) ? "good" : BAD.includes(word) ? "bad" : NEUTRAL.includes(word) ? "none" : "warn");

export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const PHASES = ["plan", "wait", "read", "exchange", "step", "stage", "dispatch", "check", "commit", "publish", "upkeep"];
// After Okabe and Ito, so that they are told apart by most eyes; the order is that of an epoch.
export const COLOURS = ["#999999", "#c9c9c9", "#56b4e9", "#0072b2", "#009e73", "#8bc34a", "#cc79a7", "#f0e442", "#e69f00", "#d55e00", "#7a6652"];
export const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8bc34a", "#999999", "#7a6652", "#c9b800", "#6a51a3", "#31688e"];
