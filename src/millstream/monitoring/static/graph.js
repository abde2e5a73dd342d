// The graph of a pipeline: laid out anew only when its shape changes, its words written at every look.

import { html, useEffect, useMemo, useRef } from "/static/vendor/htm-preact.mjs";
import { Graph, layout } from "/static/vendor/dagre.mjs";
import { cut, number, rate, span, tone } from "/static/words.js";

const WIDTH = 226, HEIGHT = 78;

function laidOut(shape, across) {
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: across ? "LR" : "TB", nodesep: 26, ranksep: across ? 92 : 58, marginx: 16, marginy: 16 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of shape.nodes) graph.setNode(id, { width: WIDTH, height: HEIGHT });
  for (const [name, from, to] of shape.edges) {
    if (graph.hasNode(from) && graph.hasNode(to)) graph.setEdge(from, to, { width: 40, height: 16, labelpos: "c" }, name);
  }
  layout(graph);
  const nodes = {}, edges = {};
  for (const id of graph.nodes()) nodes[id] = graph.node(id);
  for (const edge of graph.edges()) edges[`${edge.name}|${edge.v}|${edge.w}`] = graph.edge(edge);
  const size = graph.graph();
  return { nodes, edges, width: Math.ceil(size.width) || 300, height: Math.ceil(size.height) || 100 };
}

function nodesOf(data) {
  const found = [];
  for (const one of data.injectors) {
    const lines = [`${number(one.records)} records, ${rate(one.rate)}/s`, one.ended ? "event time has ended" : `${span(one.lag)} behind its newest record`];
    if (one.backlog && one.backlog.left) lines[1] = `${number(one.backlog.left)} ${one.backlog.counts} to read`;
    found.push({ id: `injector:${one.name}`, kind: "injector", name: one.name, what: "source", lines, health: one.health });
  }
  for (const one of data.computations) {
    const kept = one.kind === "window" ? "results kept" : one.kind === "interval join" ? "records kept" : "keys";
    const keys = one.keys ? `, ${number(one.keys)} ${kept}` : "";
    const lag = one.ended ? "event time has ended" : one.lag === null ? "no event time yet" : `lag ${span(one.lag)} (own ${span(one.own_lag || 0)})`;
    found.push({ id: `computation:${one.name}`, kind: "computation", name: one.name, what: one.kind, lines: [`${rate(one.rate)} records/s${keys}`, lag], health: one.health });
  }
  for (const one of data.sinks) {
    const waits = one.waiting ? `, ${number(one.waiting)} wait` : "";
    found.push({ id: `sink:${one.name}`, kind: "sink", name: one.name, what: "sink", lines: [`${number(one.rows)} rows${waits}`, cut(one.place, 34)], health: "" });
  }
  return found;
}

function path(points) {
  const [first, ...rest] = points;
  return `M${first.x},${first.y}` + rest.map((one) => `L${one.x},${one.y}`).join("");
}

function Arrow({ points, holds }) {
  const end = points[points.length - 1], before = points[points.length - 2];
  const angle = (Math.atan2(end.y - before.y, end.x - before.x) * 180) / Math.PI;
  return html`<path class=${`arrow${holds ? " holds" : ""}`} d="M0,0L-9,-4.5L-9,4.5Z" transform=${`translate(${end.x},${end.y}) rotate(${angle})`} />`;
}

function Edge({ edge, place }) {
  const label = place.points[Math.floor(place.points.length / 2)];
  const kind = edge.kind === "weak" ? "" : edge.stored ? `, ${edge.kind}, stored` : `, ${edge.kind}`;
  const title = `stream ${edge.stream}: ${edge.kind}${edge.stored ? ", stored in the commit" : ""}${edge.why ? ` (${edge.why})` : ""}`;
  return html`<g>
    <title>${title}</title>
    <path class=${`edge ${edge.kind}${edge.stored ? " stored" : ""}${edge.holds ? " holds" : ""}`} d=${path(place.points)} />
    <${Arrow} points=${place.points} holds=${edge.holds} />
    <text class="label" x=${label.x} y=${label.y - 5} text-anchor="middle">${rate(edge.rate)}/s${kind}</text>
  </g>`;
}

function Node({ node, place, holds, onPick }) {
  const pick = (event) => {
    if (event.type === "click" || event.key === "Enter" || event.key === " ") { event.preventDefault(); onPick(node.id); }
  };
  const x = place.x - WIDTH / 2, y = place.y - HEIGHT / 2;
  const label = `${node.what} ${node.name}: ${node.health || ""} ${node.lines.join(", ")}${holds ? ", on the path of what holds time back" : ""}`;
  return html`<g class=${`node ${node.kind}${holds ? " holds" : ""}`} tabindex="0" role="button" aria-label=${label} onClick=${pick} onKeyDown=${pick} transform=${`translate(${x},${y})`}>
    <title>${node.name}</title>
    <rect class="box" width=${WIDTH} height=${HEIGHT} rx=${node.kind === "computation" ? 7 : 20} />
    <text class="name" x="12" y="20">${cut(node.name, 22)}</text>
    <text class=${tone(node.health)} x=${WIDTH - 12} y="20" text-anchor="end">${node.health}</text>
    <text class="small" x="12" y="36">${node.what}</text>
    <text x="12" y="52">${cut(node.lines[0], 34)}</text>
    <text x="12" y="68">${cut(node.lines[1], 34)}</text>
  </g>`;
}

export function PipelineGraph({ data, onPick, isHeld }) {
  const nodes = nodesOf(data);
  const known = new Set(nodes.map((one) => one.id));
  const edges = data.streams.filter((one) => known.has(one.source) && known.has(one.target));
  const across = window.innerWidth > 820;
  const shape = { nodes: nodes.map((one) => one.id), edges: edges.map((one) => [one.stream, one.source, one.target]) };
  const place = useMemo(() => laidOut(shape, across), [JSON.stringify(shape), across]);
  const onPath = new Set(isHeld ? data.path : []), frame = useRef(null);
  const room = frame.current ? frame.current.clientWidth - 4 : window.innerWidth - 80;
  const scale = Math.min(1, Math.max(0.62, room / place.width));
  useEffect(() => { // what time waits for, or the first source, is in sight
    const id = data.path[0] || (nodes[0] && nodes[0].id), at = place.nodes[id];
    if (frame.current && at) frame.current.scrollLeft = at.x * scale - frame.current.clientWidth / 2;
  }, [place]);
  if (!nodes.length) return html`<p class="quiet">Nothing is committed yet, so there is nothing to draw.</p>`;
  return html`<div class="graph" ref=${frame} tabindex="0" role="group" aria-label="the graph of the pipeline; the same is in the table below">
      <svg width=${place.width * scale} height=${place.height * scale} viewBox=${`0 0 ${place.width} ${place.height}`}>
        ${edges.map((edge) => {
          const where = place.edges[`${edge.stream}|${edge.source}|${edge.target}`];
          return where && html`<${Edge} key=${`${edge.stream}|${edge.source}|${edge.target}`} edge=${isHeld ? edge : { ...edge, holds: false }} place=${where} />`;
        })}
        ${nodes.map((node) => html`<${Node} key=${node.id} node=${node} place=${place.nodes[node.id]} holds=${onPath.has(node.id)} onPick=${onPick} />`)}
      </svg>
    </div>
    <div class="legend">
      <span><svg width="30" height="8" aria-hidden="true"><path d="M0 4H30" stroke="currentColor" stroke-width="1.4" /></svg> weak: delivered in the same epoch</span>
      <span><svg width="30" height="8" aria-hidden="true"><path d="M0 4H30" stroke="currentColor" stroke-width="3" /></svg> stored in the commit</span>
      <span><svg width="30" height="8" aria-hidden="true"><path d="M0 4H30" stroke="currentColor" stroke-width="2" stroke-dasharray="7 3" /></svg> adaptive</span>
      <span><svg width="30" height="8" aria-hidden="true"><path d="M0 4H30" class="edge holds" stroke="#c2410c" stroke-width="3" /></svg> what holds time back</span>
    </div>`;
}
