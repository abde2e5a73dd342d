// What somebody looks for: rows of state, of views, of sinks, tables of the state service. Asked for when they are wanted.

import { html, useEffect, useState } from "/static/vendor/htm-preact.mjs";
import { ForecastChart } from "/static/charts.js";
import { cut, moment, number } from "/static/words.js";

async function ask(url) {
  const answer = await fetch(url, { headers: { accept: "application/json" } });
  if (answer.status === 401) throw new Error("The token is missing: open the address that was printed at the start.");
  const found = await answer.json();
  if (found.error) throw new Error(found.error);
  return found;
}

const query = (fields) => new URLSearchParams(fields).toString();
const Problem = ({ error }) => error && html`<p class="problem" role="alert">${error}</p>`;

function Timers({ row }) {
  const hold = row.hold === null ? "" : `holds ${moment(row.hold)}`;
  return html`<td>${row.timers.map((one) => html`<div>${one.tag} at ${moment(one.time)}${one.kind === "wall" ? " (wall clock)" : ""}</div>`)}${row.more_timers > 0 && html`<div class="quiet">and ${number(row.more_timers)} more</div>`}${hold && html`<div>${hold}</div>`}</td>`;
}

function StateRows({ found }) {
  if (!found.rows.length) return html`<p class="quiet">No row: a key whose state is the default one and that has no timers is not kept.</p>`;
  return html`<div class="scroll" tabindex="0" role="group" aria-label="rows"><table>
    <thead><tr><th>key</th><th>state</th><th>timers and holds</th><th class="n">shard</th></tr></thead>
    <tbody>${found.rows.map((row) => html`<tr><td class="mono">${row.key}</td><td><pre>${row.state}</pre>${row.maps.map((map) => html`<h3>${map.field || "entries"}: ${number(map.entries)}</h3>${map.first.map(([key, value]) => html`<pre>${key}: ${value}</pre>`)}`)}</td><${Timers} row=${row} /><td class="n">${row.shard}</td></tr>`)}</tbody>
  </table></div>${found.is_cut && html`<p class="quiet">These are the first ${found.rows.length}${found.keys ? ` of ${number(found.keys)}` : ""}. Ask for a key to see another.</p>`}`;
}

function ViewRows({ found }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="rows"><table>
    <thead><tr><th>key</th><th>value</th>${found.kind === "table" && html`<th>version</th>`}</tr></thead>
    <tbody>${found.rows.map((row) => html`<tr><td class="mono">${row.key}</td><td><pre>${row.value}</pre></td>${found.kind === "table" && html`<td>${row.version}</td>`}</tr>`)}</tbody>
  </table></div>
  ${found.origins.length > 0 && html`<h3>The documents that make it</h3><table><thead><tr><th>document</th><th>gives</th></tr></thead><tbody>${found.origins.map(([name, value]) => html`<tr><td class="mono">${name}</td><td><pre>${value}</pre></td></tr>`)}</tbody></table>${found.more_origins > 0 && html`<p class="quiet">and ${number(found.more_origins)} more</p>`}`}`;
}

export function StateBrowser({ base, data, picked }) {
  const names = data.computations.map((one) => one.name);
  const views = new Set(data.relations.map((one) => one.name));
  const [name, setName] = useState(""), [key, setKey] = useState(""), [found, setFound] = useState(null), [error, setError] = useState("");
  useEffect(() => { if (picked && names.includes(picked)) { setName(picked); setFound(null); } }, [picked]);
  const chosen = name || names[0] || "";
  const row = data.relations.find((one) => one.name === chosen);
  const look = async (event) => {
    event.preventDefault();
    setError("");
    try {
      const url = views.has(chosen) ? `${base}/view?${query({ name: chosen, key })}` : `${base}/state?${query({ computation: chosen, key })}`;
      setFound({ ...(await ask(url)), isView: views.has(chosen) });
    } catch (problem) { setFound(null); setError(problem.message); }
  };
  if (!names.length) return html`<p class="quiet">Nothing keeps state yet.</p>`;
  return html`<form class="find" onSubmit=${look}>
      <label>computation, table or view<select value=${chosen} onChange=${(e) => { setName(e.target.value); setFound(null); }}>${names.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <label>key, or nothing for the first rows<input value=${key} onInput=${(e) => setKey(e.target.value)} placeholder='tea, 7 or ["a", 7]' /></label>
      <button>Look</button>
    </form>
    ${row && html`<p class="quiet">${row.kind}, ${number(row.rows)} rows${row.depth ? `, its deepest group is a tree of depth ${row.depth}` : ""}${row.senders.length ? `, derived from ${row.senders.join(", ")}` : ""}${row.fill ? `; ${row.fill}` : ""}</p>`}
    <${Problem} error=${error} />
    ${found && html`<p class="quiet">As of epoch ${found.epoch}.</p>`}
    ${found && (found.isView ? html`<${ViewRows} found=${found} />` : html`<${StateRows} found=${found} />`)}`;
}

function parsed(rows) {
  return rows.map((row) => { try { return { key: row.key, ...JSON.parse(row.value) }; } catch { return { key: row.key }; } });
}

// Rows that say what was counted and what was expected are drawn: whoever detects anomalies has them.
function Forecasts({ rows, others }) {
  const own = parsed(rows).filter((one) => "actual" in one && ("expected" in one) && "at" in one && !("event" in one));
  const keys = [...new Set(own.map((one) => one.key))].slice(0, 4);
  if (!keys.length) return null;
  const anomalies = parsed(others).filter((one) => "event" in one);
  return html`<div>${keys.map((key) => html`<h3>${key}</h3><${ForecastChart} name=${key} rows=${own.filter((one) => one.key === key)} anomalies=${anomalies.filter((one) => one.key === key)} />`)}</div>`;
}

export function PublishedRows({ base, data }) {
  const names = data.sinks.map((one) => one.name);
  const [name, setName] = useState(""), [found, setFound] = useState(null), [error, setError] = useState(""), [others, setOthers] = useState([]);
  const chosen = name || names[0] || "";
  const near = names.find((one) => one !== chosen && /anomal/i.test(one));
  useEffect(() => {
    if (!chosen) return undefined;
    let wanted = true, timer = 0;
    const look = async () => {
      try {
        const rows = await ask(`${base}/rows?${query({ sink: chosen })}`);
        const beside = near ? (await ask(`${base}/rows?${query({ sink: near })}`)).rows : [];
        if (wanted) { setFound(rows); setOthers(beside); setError(""); }
      } catch (problem) { if (wanted) setError(problem.message); }
      if (wanted) timer = setTimeout(look, data.is_live ? 3000 : 30000);
    };
    look();
    return () => { wanted = false; clearTimeout(timer); };
  }, [chosen, base, data.is_live]);
  if (!names.length) return html`<p class="quiet">Nothing goes to a sink yet.</p>`;
  return html`<form class="find" onSubmit=${(e) => e.preventDefault()}><label>sink<select value=${chosen} onChange=${(e) => { setName(e.target.value); setFound(null); }}>${names.map((one) => html`<option value=${one}>${one}</option>`)}</select></label></form>
    <${Problem} error=${error} />
    ${found && found.why && html`<p class="quiet">${found.why}</p>`}
    ${found && html`<${Forecasts} rows=${found.rows} others=${others} />`}
    ${found && found.rows.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label="rows"><table><thead><tr><th>key</th><th>time (UTC)</th><th>value</th></tr></thead><tbody>${[...found.rows].reverse().slice(0, 100).map((row) => html`<tr><td class="mono">${row.key}</td><td class="t">${moment(row.timestamp)}</td><td><pre>${cut(row.value, 1000)}</pre></td></tr>`)}</tbody></table></div>`}
    ${found && !found.why && !found.rows.length && html`<p class="quiet">No row is published yet.</p>`}`;
}

export function ServiceTables() {
  const [found, setFound] = useState(null), [error, setError] = useState("");
  useEffect(() => {
    const look = () => ask("/api/tables").then((one) => { setFound(one); setError(""); }, (problem) => setError(problem.message));
    look();
    const timer = setInterval(look, 5000);
    return () => clearInterval(timer);
  }, []);
  if (!error && (!found || !found.tables)) return null;
  return html`<section class="card wide" id="tables"><h2>Tables of the state service</h2><${Problem} error=${error} />
    ${found && html`<p class="quiet">${found.tables.join(", ") || "no table"}; nodes: ${Object.keys(found.nodes).join(", ") || "none"}</p>
    <div class="scroll" tabindex="0" role="group" aria-label="partitions"><table><thead><tr>${Object.keys(found.partitions[0] || {}).map((name) => html`<th>${name}</th>`)}</tr></thead><tbody>${found.partitions.map((one) => html`<tr>${Object.values(one).map((value) => html`<td>${typeof value === "object" ? JSON.stringify(value) : String(value)}</td>`)}</tr>`)}</tbody></table></div>`}</section>`;
}

