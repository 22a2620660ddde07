// Ended jobs, a page at a time.

import { bytes, byId, element, moment, rate, shown, span } from "./format.js";
import { get } from "./api.js";
import { badge } from "./jobs.js";

let next = null;
let asked = 0;
const PIECE = 25;

function row(job, open) {
  const [name, kind] = badge(job);
  const title = `${shown(job.label)} #${job.id}`;
  const why = job.message ? element("p", { class: "quiet" }, shown(job.message)) : null;
  return element("tr", { "data-job": job.id },
    element("td", {},
      element("button", { type: "button", class: "name", onclick: () => open(job.id) }, title),
      element("p", { class: "path" }, `${shown(job.source)} → ${shown(job.target)}`), why),
    element("td", {}, element("span", { class: kind }, name)),
    element("td", { class: "wide" }, bytes(job.bytes)),
    element("td", { class: "wide" }, rate(job.bytes_per_second)),
    element("td", { class: "wide" }, span(job.seconds)),
    element("td", {}, moment(job.ended)));
}

const body = () => byId("history").tBodies[0];

function tell() {
  const none = body().rows.length === 0;
  byId("no-history").hidden = !none;
  byId("history").hidden = none;
  byId("older").hidden = next === null;
}

export async function load(open, { more }) {
  const mine = ++asked;
  const before = more && next !== null ? `&before=${next}` : "";
  const page = await get(`/jobs?state=${byId("history-filter").value}&limit=${PIECE}${before}`);
  // The user may have chosen another filter in the meantime.
  if (mine !== asked) return;
  const made = page.jobs.map((job) => row(job, open));
  if (more) body().append(...made);
  else body().replaceChildren(...made);
  next = page.next;
  tell();
}

// Adds a job that ended while the page is open.
export function add(job, open) {
  if (!byId("history-filter").value.split(",").includes(job.state)) return;
  body().querySelector(`[data-job="${job.id}"]`)?.remove();
  body().prepend(row(job, open));
  tell();
}
