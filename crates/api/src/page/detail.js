// The details of a job: its properties, its bottleneck, its charts, and its events.

import { byId, bytes, count, element, limit, moment, perSecond, rate, say, shown, span, stageOf, STAGES } from "./format.js";
import { get, text } from "./api.js";
import { draw } from "./chart.js";
import { actions, badge, facts, fill, isOver, isReported, reportsSoFar, stages } from "./jobs.js";

let current = null;
let samples = [];
let lastEvent = 0;

export const isOpen = (id) => current?.id === id && byId("job").open;

export async function open(id, done) {
  let [job, since] = [null, 0];
  do {
    since = reportsSoFar();
    job = await get(`/jobs/${id}`);
  } while (isReported(id, since));
  [current, samples, lastEvent] = [job, [], 0];
  byId("job-events").replaceChildren();
  byId("job-log").hidden = true;
  byId("show-log").setAttribute("aria-expanded", "false");
  byId("job-actions").dataset.orders = "none";
  say(byId("job-message"), "");
  if (!byId("job").open) byId("job").showModal();
  show(job, done);
  const [kept] = await Promise.all([get(`/jobs/${id}/samples`), events(id)]);
  if (current?.id !== id) return;
  const live = samples.filter((sample) => sample.seconds > (kept.samples.at(-1)?.seconds ?? -1));
  samples = [...kept.samples, ...live];
  pictures();
}

async function events(id) {
  // A job may have many events. Each page is shown as it arrives.
  for (let pieces = 0; pieces < 20; pieces += 1) {
    const { events: some, next } = await get(`/jobs/${id}/events?after=${lastEvent}&limit=500`);
    if (current?.id !== id) return;
    some.forEach(addEvent);
    if (next === null) return;
  }
}

export function addEvent(event) {
  if (event.number <= lastEvent) return;
  lastEvent = event.number;
  const attempt = event.attempt > 1 ? ` (attempt ${event.attempt})` : "";
  const words = `${shown(event.event)}${attempt}${event.message ? `: ${shown(event.message)}` : ""}`;
  byId("job-events").append(element("li", {}, element("time", {}, moment(event.time)), words));
}

export function sample(report) {
  samples.push(report);
  // When there are many samples, every second one is dropped.
  if (samples.length > 1200) samples = samples.filter((_, at) => at % 2 === 0);
  pictures();
}

export function show(job, done) {
  current = job;
  const [name] = badge(job);
  say(byId("job-title"), `${shown(job.label)} #${job.id}: ${name}`);
  say(byId("job-path"), `${shown(job.source)} → ${shown(job.target)}`);
  if (job.message) say(byId("job-message"), shown(job.message));
  actions(byId("job-actions"), job, done, (why) => say(byId("job-message"), why));
  const more = [["Submitted", moment(job.submitted)]];
  if (job.started) more.push(["Began", moment(job.started)]);
  if (isOver(job)) more.push(["Ended", moment(job.ended)], ["Took", span(job.seconds)]);
  if (job.schedule) more.push(["Schedule", shown(job.schedule)]);
  if (job.previous) more.push(["Rerun of", `#${job.previous}`]);
  if (job.exit !== null) more.push(["Exit code", String(job.exit)]);
  const had = facts(job).filter(([, value]) => value !== "–");
  fill(byId("job-facts"), [...had, ...more]);
  nodes(job.nodes);
  const word = job.limited_by;
  stages(byId("job-stages"), word);
  const verb = isOver(job) ? "Limited most of the time by" : "Limited by";
  say(byId("job-limit"), word ? `${verb}: ${limit(word)}.${shares()}` : "Not known yet.");
}

// Shows the nodes and receivers of a job with several of them.
function nodes(all) {
  byId("job-nodes").hidden = !all;
  if (!all) return;
  const waiting = all.items_waiting === null ? "" : `, ${count(all.items_waiting)} items waiting`;
  const rest = all.count > all.nodes.length ? `, showing ${all.nodes.length}` : "";
  const kind = all.kind || "node";
  byId("job-nodes").querySelectorAll(".kind").forEach((word) => say(word, kind[0].toUpperCase() + kind.slice(1)));
  say(byId("job-nodes-waiting"), `${count(all.count)} ${kind}s${waiting}${rest}.`);
  const row = (node) => element("tr", {},
    element("td", {}, shown(node.name)),
    element("td", { class: ["slow", "silent"].includes(node.state) ? "error" : null }, shown(node.state)),
    element("td", {}, `${bytes(node.bytes)}, ${count(node.files)} files`),
    element("td", {}, rate(node.bytes_per_second)),
    element("td", { class: "wide" }, node.percent_of_others === null ? "–" : `${node.percent_of_others} %`));
  byId("job-nodes").querySelector("tbody").replaceChildren(...all.nodes.map(row));
  byId("job-receivers").hidden = all.receivers.length === 0;
  byId("job-receivers").querySelector("tbody").replaceChildren(...all.receivers.map(row));
}

// Returns the share of samples in which each stage was the bottleneck.
function shares() {
  if (samples.length < 5) return "";
  const times = new Map();
  for (const { limited_by: word } of samples) times.set(stageOf(word), (times.get(stageOf(word)) ?? 0) + 1);
  const parts = STAGES.filter(([stage]) => times.has(stage))
    .map(([stage, name]) => `${name} ${Math.round((times.get(stage) / samples.length) * 100)} %`);
  return parts.length > 1 ? ` Of all reports: ${parts.join(", ")}.` : "";
}

function pictures() {
  const known = samples.filter((sample) => sample.bytes_per_second !== null);
  const rates = known.map((sample) => [sample.seconds, sample.bytes_per_second]);
  const speeds = samples.slice(1).map((sample, at) => {
    const took = sample.seconds - samples[at].seconds;
    return [sample.seconds, took > 0 ? Math.max(0, sample.files - samples[at].files) / took : 0];
  });
  draw(byId("job-chart"), rates, { write: rate, when: span, what: "Rate", factor: 8 });
  draw(byId("job-files"), speeds, { write: perSecond, when: span, what: "Files per second", height: 90 });
}

export function begin() {
  byId("job").addEventListener("close", () => { current = null; });
  byId("show-log").addEventListener("click", async () => {
    const log = byId("job-log");
    log.hidden = !log.hidden;
    byId("show-log").setAttribute("aria-expanded", String(!log.hidden));
    if (log.hidden || !current) return;
    try {
      log.textContent = shownLog(await text(`/jobs/${current.id}/log`)) || "The log is empty.";
    } catch (error) {
      log.textContent = error.message;
    }
  });
}

const shownLog = (said) => said.split("\n").map(shown).join("\n").trim();
