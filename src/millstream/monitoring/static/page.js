// The page: what is seen of one pipeline, or a choice of several. New data come as events, at most one a second.

import { html, render, useEffect, useState } from "/static/vendor/htm-preact.mjs";
import { PublishedRows, ServiceTables, StateBrowser } from "/static/browse.js";
import { EpochChart, TimeChart } from "/static/charts.js";
import { PipelineGraph } from "/static/graph.js";
import { ago, bytes, clock, moment, number, rate, span, tone } from "/static/words.js";

const Pill = ({ word, title }) => html`<span class=${`pill ${tone(word)}`} title=${title || ""}>${word}</span>`;
const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
const Card = ({ id, title, wide, children }) => html`<section class=${`card${wide ? " wide" : ""}`} id=${id} aria-labelledby=${`${id}-title`}><h2 id=${`${id}-title`}>${title}</h2>${children}</section>`;

function Top({ data, alone, since }) {
  const now = data.looked_at + since;
  return html`<header class="top">
    <div class="row">${!alone && html`<a href="#" aria-label="all pipelines">←</a>`}<h1>${data.pipeline || data.checkpoint}</h1><${Pill} word=${data.word} /><span>${data.sentence}</span></div>
    <dl class="facts">
      <${Fact} name="epoch">${number(data.epoch < 0 ? null : data.epoch)}<//>
      <${Fact} name="committed (UTC)">${clock(data.committed_at)} <span class="quiet">${data.committed_at === null ? "" : ago(data.committed_at, now)}</span><//>
      <${Fact} name="records">${number(data.records)}<//>
      <${Fact} name="records/s">${rate(data.records_per_second)}<//>
      <${Fact} name="epochs/s">${rate(data.epochs_per_second)}<//>
      <${Fact} name="per epoch">${span(data.epoch_millis)}<//>
      <${Fact} name="mode">${data.mode.name}<//>
      <${Fact} name="shards">${number(data.shards)}<//>
      <${Fact} name="written">${bytes(data.written)}<//>
      ${data.refused > 0 && html`<${Fact} name="refused writes of replaced runs">${number(data.refused)}<//>`}
    </dl>
    <div class="quiet mono">${data.checkpoint}${data.run && ` · run ${data.run}`}${data.host && ` · ${data.host}`}</div>
  </header>`;
}

function Details({ data, id, onClose }) {
  const [kind, name] = [id.slice(0, id.indexOf(":")), id.slice(id.indexOf(":") + 1)];
  const list = kind === "injector" ? data.injectors : kind === "sink" ? data.sinks : data.computations;
  const one = list.find((other) => other.name === name);
  if (!one) return null;
  const facts = [];
  const add = (label, value) => { if (value !== "" && value !== null && value !== undefined && value !== "–") facts.push([label, value]); };
  if (kind === "injector") {
    add("records", `${number(one.records)}, ${rate(one.rate)}/s`); add("newest record", moment(one.newest)); add("watermark", one.ended ? "event time has ended" : moment(one.watermark));
    add("it is held by", one.held_back_by);
    add("to be read", one.backlog ? `${number(one.backlog.left)} ${one.backlog.counts}${one.backlog.seconds === null ? "" : `, ${span(one.backlog.seconds * 1000)} at the present rate`}` : null);
    one.subs.forEach(([sub, at]) => add(`part ${sub}`, moment(at)));
    if (one.more_subs) add("further parts", one.more_subs);
  } else if (kind === "sink") {
    add("stream", one.stream); add("place", one.place); add("rows", number(one.rows)); add("rows/s", rate(one.rate)); add("committed, to be published later", one.waiting ? number(one.waiting) : null);
  } else {
    add("kind", one.kind); Object.entries(one.about).forEach(([label, value]) => add(label, String(value)));
    add("low watermark", one.ended ? "event time has ended" : moment(one.low_watermark)); add("output watermark", moment(one.output_watermark));
    add("lag", one.lag === null ? null : `${span(one.lag)}: inherited ${span(one.inherited_lag)}, own ${span(one.own_lag || 0)}`);
    add("held back by", one.held_back_by === "nothing" ? null : one.held_back_by);
    add("records", `${number(one.records)}, ${rate(one.rate)}/s`); add("productions", number(one.produced)); add("keys", number(one.keys)); add("timers", number(one.timers));
    add("late records", one.late ? number(one.late) : null); add("dead letters", one.dead_letters ? number(one.dead_letters) : null); add("repeated records dropped", one.duplicates ? number(one.duplicates) : null);
    add("productions stored for it", one.waiting ? number(one.waiting) : null); add("state in the log", `${bytes(one.log_bytes)} in ${number(one.segments)} segments`);
  }
  return html`<div role="region" aria-label=${`details of ${name}`}><div class="row"><h3>${name}</h3>${one.health && html`<${Pill} word=${one.health} />`}<span>${one.why || ""}</span><button class="plain" onClick=${onClose}>Close</button></div>
    <dl class="kv">${facts.map(([label, value]) => html`<dt>${label}</dt><dd>${value}</dd>`)}</dl></div>`;
}

function Computations({ data, onPick }) {
  return html`<details><summary>The same as a table</summary><div class="scroll" tabindex="0" role="group" aria-label="computations"><table>
    <thead><tr><th>name</th><th>health</th><th class="n">records/s</th><th class="n">lag</th><th class="n">own</th><th class="n">inherited</th><th class="n">keys</th><th class="n">timers</th><th class="n">late</th><th>held back by</th></tr></thead>
    <tbody>${data.computations.map((one) => html`<tr><td><button class="plain" onClick=${() => onPick(`computation:${one.name}`)}>${one.name}</button></td><td><${Pill} word=${one.health} title=${one.why} /></td><td class="n">${rate(one.rate)}</td><td class="n">${one.ended ? "ended" : span(one.lag)}</td><td class="n">${span(one.own_lag)}</td><td class="n">${span(one.inherited_lag)}</td><td class="n">${one.kind === "window" || one.kind === "interval join" ? "–" : number(one.keys)}</td><td class="n">${number(one.timers)}</td><td class="n">${number(one.late)}</td><td>${one.held_back_by}</td></tr>`)}</tbody>
  </table></div></details>`;
}

function Epochs({ data }) {
  const bars = data.bars, odd = bars.filter((one) => one.tries || one.is_new_run);
  if (!bars.length) return html`<p class="quiet">No epoch was seen yet.</p>`;
  const last = bars[bars.length - 1], gaps = bars.slice(1).filter((one, at) => one.at - bars[at].at > 15000);
  return html`<${EpochChart} bars=${bars} />
    <p class="quiet">A bar is a second's epochs, and their mean. The last: epoch ${number(last.last)}, ${span(last.millis)}, ${number(last.records)} records.${gaps.length > 0 && ` ${gaps.length} pause${gaps.length > 1 ? "s" : ""} of more than 15 s.`}</p>
    ${odd.length > 0 && html`<ul>${odd.slice(-5).map((one) => html`<li>${clock(one.at)}: ${one.is_new_run ? `epoch ${number(one.first)} is the first of another run` : `${one.tries} attempt${one.tries > 1 ? "s" : ""} at epoch ${number(one.last)} begun again`}</li>`)}</ul>`}
    <details><summary>The last epochs as a table</summary><div class="scroll" tabindex="0" role="group" aria-label="epochs"><table><thead><tr><th>committed</th><th class="n">epochs</th><th class="n">records</th><th class="n">mean</th><th>phases</th></tr></thead><tbody>${bars.slice(-30).reverse().map((one) => html`<tr><td>${clock(one.at)}</td><td class="n">${one.first === one.last ? number(one.first) : `${number(one.first)} to ${number(one.last)}`}</td><td class="n">${number(one.records)}</td><td class="n">${span(one.millis)}</td><td>${Object.entries(one.phases).filter(([, ms]) => ms >= 0.05).map(([name, ms]) => `${name} ${ms.toFixed(1)}`).join(", ")} ms</td></tr>`)}</tbody></table></div></details>`;
}

function EventTime({ data }) {
  const times = data.times;
  if (!times.at.length) return html`<p class="quiet">No event time yet.</p>`;
  const lows = [{ name: "newest record", values: times.newest }, ...times.low_watermarks];
  return html`<h3>Lag: how far low watermarks are behind the newest record</h3>
    <${TimeChart} times=${times.at} lines=${times.lags} format=${(v) => span(v)} label="the lag of each computation over time" />
    <h3>Low watermarks</h3>
    <${TimeChart} times=${times.at} lines=${lows} format=${(v) => clock(v)} isMoment=${true} label="the low watermark of each computation over time" />
    ${times.more > 0 && html`<p class="quiet">${times.more} computations that are less far behind are not drawn.</p>`}`;
}

function Shards({ data }) {
  if (!data.heat.length) return html`<p class="quiet">No shard has anything yet.</p>`;
  const most = Math.max(0.001, ...data.heat.map((one) => one.millis)), keys = Math.max(1, ...data.heat.map((one) => one.keys));
  const byTime = data.heat.some((one) => one.millis > 0), small = data.heat.length > 64;
  const share = (one) => (byTime ? one.millis / most : one.keys / keys);
  const busy = data.heat.filter((one) => one.millis > 0).map((one) => one.millis).sort((a, b) => a - b), median = busy[Math.floor(busy.length / 2)];
  return html`<div class=${`heat${small ? " small" : ""}`} role="img" aria-label=${`the load of ${data.shards} shards; the busiest took ${span(most)}, the median ${span(median || 0)}`}>
    ${data.heat.map((one) => html`<div class=${`cell${share(one) > 0.55 ? " hot" : ""}`} style=${{ background: share(one) ? `color-mix(in srgb, #c2410c ${Math.round(8 + 92 * share(one))}%, transparent)` : "transparent" }} title=${`shard ${one.first === one.last ? one.first : `${one.first} to ${one.last}`}: ${span(one.millis)}, ${number(one.records)} records, ${number(one.keys)} keys`}>${one.first}</div>`)}
  </div><p class="quiet">${byTime ? `Time of the steps lately: the busiest ${span(most)}, the median ${span(median)}.` : "By keys: nothing was measured lately."} ${data.heat.length < data.shards ? `A cell is ${data.heat[0].last + 1} shards.` : ""}</p>`;
}

function Astray({ data }) {
  const sum = (name) => data.computations.reduce((total, one) => total + one[name], 0);
  return html`<dl class="facts"><${Fact} name="late records">${number(sum("late"))}<//><${Fact} name="repeated, dropped">${number(sum("duplicates"))}<//><${Fact} name="dead letters">${number(sum("dead_letters"))}<//></dl>
    ${data.late.length > 0 ? html`<h3>The last late records</h3><div class="scroll" tabindex="0" role="group" aria-label="late records"><table><thead><tr><th>computation</th><th>key</th><th>its time</th><th>late by</th><th>value</th></tr></thead><tbody>${data.late.map((one) => html`<tr><td>${one.computation} <span class="quiet">of ${one.stream}</span></td><td class="mono">${one.key}</td><td class="t">${moment(one.timestamp)}</td><td class="t">${span(one.low_watermark - one.timestamp)}</td><td><pre>${one.value}</pre></td></tr>`)}</tbody></table></div>` : html`<p class="quiet">No record was late.</p>`}
    ${data.dead.length > 0 && html`<h3>The last dead letters</h3><div class="scroll" tabindex="0" role="group" aria-label="dead letters"><table><thead><tr><th>computation</th><th>key</th><th>its time</th><th>error</th></tr></thead><tbody>${data.dead.map((one) => html`<tr><td>${one.computation} <span class="quiet">${one.stream ? `of ${one.stream}` : "at a timer"}</span></td><td class="mono">${one.key}</td><td class="t">${moment(one.timestamp)}</td><td><pre>${one.error}</pre></td></tr>`)}</tbody></table></div><p class="quiet">They are rows of the streams <code>NAME.dead-letters</code>, with tracebacks.</p>`}`;
}

function Tasks({ data }) {
  const mode = data.mode;
  if (mode.name !== "resident") return html`<p class="quiet">Each epoch is a Spark job: its tasks are on Spark's own page.</p>`;
  return html`<p>Generation ${mode.generation}, ${number(mode.losses)} lost so far, ${number(mode.jobs)} jobs${mode.missing.length ? `; being replaced: ${mode.missing.join(", ")}` : ""}.</p>
    <div class="scroll" tabindex="0" role="group" aria-label="tasks"><table><thead><tr><th class="n">task</th><th>where</th><th class="n">shards</th><th class="n">memory</th><th>at</th></tr></thead><tbody>${mode.tasks.map((one) => html`<tr><td class="n">${one.slot}</td><td>${one.host}, process ${one.pid}</td><td class="n">${one.shards.length}</td><td class="n">${bytes(one.memory)}</td><td>${one.at ? `${one.at} for ${span(one.millis)}` : ""}</td></tr>`)}</tbody></table></div>`;
}

function Upkeep({ data }) {
  const caches = Object.entries(data.state_caches), compactions = data.compactions;
  return html`${data.fills.map((one) => html`<p>${one}</p>`)}
    ${Object.keys(compactions).length > 0 && html`<dl class="kv">${Object.entries(compactions).filter(([, value]) => value !== "" && value !== null).map(([name, value]) => html`<dt>compactions, ${name.replace(/_/g, " ")}</dt><dd>${typeof value === "number" ? number(value) : String(value)}</dd>`)}</dl>`}
    ${caches.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label="state caches"><table><thead><tr><th>state cache of</th><th class="n">on disk</th><th class="n">entries</th><th class="n">loaded anew</th><th class="n">brought up to date</th></tr></thead><tbody>${caches.map(([name, one]) => html`<tr><td>${name}</td><td class="n">${bytes(one.bytes)}</td><td class="n">${number(one.entries)}</td><td class="n">${number(one.loads)}</td><td class="n">${number(one.catch_ups)}</td></tr>`)}</tbody></table></div>`}
    ${!caches.length && !Object.keys(compactions).length && html`<p class="quiet">A driver that is at work tells of compactions and state caches.</p>`}`;
}

// A source that is well holds time back by what its watermark waits for, and no more: that is nothing to look at.
function isHeld(data) {
  const last = data.path[data.path.length - 1] || "", source = data.injectors.find((one) => `injector:${one.name}` === last);
  return data.path.length > 0 && !(source && source.health === "ok");
}

const PARTS = [["graph", "Graph"], ["epochs", "Epochs"], ["time", "Event time"], ["shards", "Shards"], ["astray", "Late and lost"], ["rows", "Rows"], ["state", "State"], ["tasks", "Tasks"], ["upkeep", "Upkeep"]];

function Pipeline({ number: at, alone }) {
  const base = `/api/pipelines/${at}`;
  const [data, setData] = useState(null), [lost, setLost] = useState(""), [picked, setPicked] = useState("");
  const [came, setCame] = useState(0), [now, setNow] = useState(0);
  useEffect(() => {
    let news = null, again = 0;
    const open = () => {
      news = new EventSource(`${base}/events`);
      news.onmessage = (event) => { setData(JSON.parse(event.data)); setLost(""); setCame(Date.now()); setNow(Date.now()); };
      news.onerror = () => {
        setLost("The page has lost its server. What is shown is old; it tries again by itself.");
        if (news.readyState === EventSource.CLOSED) again = setTimeout(open, 5000); // it was refused, and would not try again
      };
    };
    open();
    const tick = setInterval(() => setNow(Date.now()), 5000);
    return () => { clearTimeout(again); clearInterval(tick); news.close(); };
  }, [base]);
  useEffect(() => { if (data) document.title = `${data.pipeline || "Millstream"}: ${data.word}`; }, [data && data.word]);
  if (!data) return html`<p class="pad quiet">${lost || "Looking at the pipeline …"}</p>`;
  const jump = (event, id) => { event.preventDefault(); const there = document.getElementById(id); there.scrollIntoView(); there.tabIndex = -1; there.focus({ preventScroll: true }); };
  return html`<${Top} data=${data} alone=${alone} since=${Math.max(0, now - came)} />
    ${lost && html`<p class="lost" role="status">${lost}</p>`}
    <nav class="jump" aria-label="parts of the page">${PARTS.map(([id, title]) => html`<a href=${`#${id}`} onClick=${(event) => jump(event, id)}>${title}</a>`)}</nav>
    <main id="main">
      <${Card} id="graph" title="Graph" wide=${true}>
        ${data.path_text && (isHeld(data) ? html`<p class="holds"><strong>Time is held back by</strong> ${data.path_text}</p>` : html`<p class="quiet">Event time follows ${data.path_text}.</p>`)}
        <${PipelineGraph} data=${data} onPick=${setPicked} isHeld=${isHeld(data)} />
        ${(data.more_computations > 0 || data.more_streams > 0) && html`<p class="quiet">Not drawn: ${number(data.more_computations)} computations and ${number(data.more_streams)} streams that are less far behind.</p>`}
        ${picked && html`<${Details} data=${data} id=${picked} onClose=${() => setPicked("")} />`}
        <${Computations} data=${data} onPick=${setPicked} />
      <//>
      <${Card} id="epochs" title="Epochs: where the time goes"><${Epochs} data=${data} /><//>
      <${Card} id="time" title="Event time"><${EventTime} data=${data} /><//>
      <${Card} id="shards" title="Shards"><${Shards} data=${data} /><//>
      <${Card} id="astray" title="Late, repeated, failed"><${Astray} data=${data} /><//>
      <${Card} id="rows" title="Rows that were published" wide=${true}><${PublishedRows} base=${base} data=${data} /><//>
      <${Card} id="state" title="State" wide=${true}><${StateBrowser} base=${base} data=${data} picked=${picked.startsWith("computation:") ? picked.slice(12) : ""} /><//>
      <${Card} id="tasks" title="Tasks"><${Tasks} data=${data} /><//>
      <${Card} id="upkeep" title="Upkeep"><${Upkeep} data=${data} /><//>
      <${ServiceTables} />
    </main>`;
}

function Choice({ all }) {
  return html`<header class="top"><h1>Pipelines</h1></header><main class="cards" id="main">${all.map((one) => html`<a href=${`#/${one.number}`}><div class="row"><strong>${one.pipeline || "?"}</strong><${Pill} word=${one.word} /></div><div class="quiet mono">${one.checkpoint}</div><div>epoch ${number(one.epoch < 0 ? null : one.epoch)}</div></a>`)}</main><div class="pad"><${ServiceTables} /></div>`;
}

function App() {
  const [all, setAll] = useState(null), [where, setWhere] = useState(location.hash), [error, setError] = useState("");
  useEffect(() => {
    const go = () => setWhere(location.hash);
    addEventListener("hashchange", go);
    return () => removeEventListener("hashchange", go);
  }, []);
  useEffect(() => {
    fetch("/api/pipelines").then(async (answer) => {
      if (!answer.ok) throw new Error(await answer.text());
      setAll(await answer.json());
    }).catch((problem) => setError(problem.message));
  }, [where]);
  if (error) return html`<p class="problem pad" role="alert">${error}</p>`;
  if (!all) return html`<p class="pad quiet">Looking …</p>`;
  if (all.length === 1) return html`<${Pipeline} number=${0} alone=${true} />`;
  const chosen = /^#\/(\d+)$/.exec(where);
  return chosen && all[chosen[1]] ? html`<${Pipeline} key=${chosen[1]} number=${Number(chosen[1])} />` : html`<${Choice} all=${all} />`;
}

render(html`<${App} />`, document.getElementById("app"));
