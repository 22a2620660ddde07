// Jobs that have not ended. Rows are updated in place, so that the focus and the position of a screen reader are kept.

import { bytes, byId, count, element, limit, moment, perSecond, rate, say, shown, span, stageOf, STAGES } from "./format.js";
import { post } from "./api.js";

// Jobs by number. `speed` is a moving average of files per second between reports.
export const jobs = new Map();
const rows = new Map();
const WAITING_SHOWN = 50;

// Number of the last report of the stream, overall and for each job.
let reports = 0;
const reported = new Map();
export const reportsSoFar = () => reports;
export const report = (id) => reported.set(id, (reports += 1));
// Whether the stream has reported a job after report `since`. A response requested at that point may then be outdated.
export const isReported = (id, since) => (reported.get(id) ?? 0) > since;

export const isOver = (job) => job.ended !== null;

export function take(job) {
  const before = jobs.get(job.id);
  jobs.set(job.id, { ...job, speed: before?.speed ?? null });
}

export function progress(report) {
  const job = jobs.get(report.id);
  if (!job) return;
  const took = report.seconds - (job.seconds ?? 0);
  if (job.files !== null && took > 0) {
    const speed = Math.max(0, report.files - job.files) / took;
    job.speed = job.speed === null ? speed : job.speed * 0.6 + speed * 0.4;
  }
  Object.assign(job, report);
}

export function totals() {
  let [speed, files] = [0, 0];
  for (const job of jobs.values()) {
    if (job.state !== "running") continue;
    speed += job.bytes_per_second ?? 0;
    files += job.speed ?? 0;
  }
  return { rate: speed, files };
}

export function badge(job) {
  const words = { pause: "is being paused", cancel: "is being cancelled" };
  const name = isOver(job) ? job.state : (words[job.asked] ?? job.state);
  return [name, `badge ${job.asked ? "paused" : job.state}`];
}

export function facts(job) {
  const more = job.scan_ended === false ? "+" : "";
  const of = (done, found, write) => (found === null ? write(done) : `${write(done)} of ${write(found)}${more}`);
  const list = [
    ["Rate", rate(job.bytes_per_second)],
    ["Left", span(job.eta_seconds)],
    ["Bytes", of(job.bytes_done ?? job.bytes, job.bytes_found, bytes)],
    ["Files", of(job.files_done ?? job.files, job.files_found, count)],
    ["Moved", job.bytes_done === null || job.bytes_done === job.bytes ? "–" : bytes(job.bytes)],
    ["Files/s", perSecond(isOver(job) ? job.files / job.seconds : job.speed)],
    ["Lanes", count(job.lanes)],
    ["Attempt", count(job.attempts)],
  ];
  // A job with several nodes or receivers has no single number of lanes.
  if (job.state !== "running" || !job.lanes) list.splice(6, 1);
  return list.filter(([name, value]) => name !== "Moved" || value !== "–");
}

export function fill(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild.remove();
  pairs.forEach(([name, value], at) => {
    const pair = list.children[at] ?? list.appendChild(element("div", {}, element("dt"), element("dd")));
    say(pair.firstElementChild, name);
    say(pair.lastElementChild, value);
  });
}

export function stages(list, word) {
  if (list.children.length === 0) list.append(...STAGES.map(([, name]) => element("li", { title: name }, name)));
  STAGES.forEach(([stage], at) => {
    if (stage === stageOf(word)) list.children[at].setAttribute("aria-current", "step");
    else list.children[at].removeAttribute("aria-current");
  });
}

// Returns the orders that are possible for a job.
export function orders(job) {
  if (isOver(job)) return [["rerun", "Run again"]];
  const isHeld = job.state === "paused" || job.asked === "pause";
  const hold = isHeld ? [["resume", "Resume"]] : job.asked ? [] : [["pause", "Pause"]];
  return job.asked === "cancel" ? [] : [...hold, ["cancel", "Cancel"]];
}

export function actions(node, job, done, fail) {
  const wanted = orders(job);
  const key = wanted.map(([order]) => order).join();
  if (node.dataset.orders === key) return;
  const had = node.contains(document.activeElement);
  node.dataset.orders = key;
  node.replaceChildren(...wanted.map(([order, name]) => {
    const give = async (event) => {
      const button = event.currentTarget;
      if (order === "cancel" && !button.dataset.sure) {
        button.dataset.sure = "yes";
        button.textContent = "Really cancel?";
        setTimeout(() => { delete button.dataset.sure; button.textContent = name; }, 4000);
        return;
      }
      button.disabled = true;
      const since = reportsSoFar();
      try {
        done(order, await post(`/jobs/${job.id}/${order}`), since);
      } catch (error) {
        fail(error.message);
      }
      button.disabled = false;
    };
    const attributes = { type: "button", "data-order": order, "aria-label": `${name} job ${job.id}`, onclick: give };
    if (order === "cancel") attributes.class = "danger";
    return element("button", attributes, name);
  }));
  if (had) node.querySelector("button")?.focus();
}

function why(job) {
  const words = [];
  if (job.state === "running") words.push(job.limited_by ? `Limited by: ${limit(job.limited_by)}` : "Starting");
  const begins = job.attempts > 0 ? "retries" : "starts";
  if (job.state === "waiting" && job.not_before) words.push(`${begins} ${moment(job.not_before)}`);
  if (job.schedule) words.push(`repeats at ${shown(job.schedule)}`);
  if (job.message) words.push(shown(job.message));
  return words.join("; ");
}

function make(job, open) {
  const parts = {
    row: element("li", { "data-job": job.id }), name: element("button", { type: "button", class: "name", onclick: () => open(job.id) }),
    badge: element("span"), actions: element("div", { class: "actions" }), path: element("p", { class: "path" }),
    bar: element("progress", { max: 1 }), facts: element("dl", { class: "facts" }), why: element("p", { class: "quiet" }),
    stages: element("ol", { class: "stages", "aria-label": "Pipeline stages; the limiting stage is the current one" }),
    error: element("p", { class: "error", role: "alert" }),
  };
  const head = element("div", { class: "job-head" }, parts.name, parts.badge, parts.actions);
  parts.row.append(head, parts.path, parts.bar, parts.facts, parts.stages, parts.why, parts.error);
  return parts;
}

function update(parts, job, done) {
  say(parts.name, `${shown(job.label)} #${job.id}`);
  const [name, kind] = badge(job);
  say(parts.badge, name);
  parts.badge.className = kind;
  say(parts.path, `${shown(job.source)} → ${shown(job.target)}`);
  actions(parts.actions, job, done, (why) => say(parts.error, why));
  const runs = job.state === "running";
  for (const part of [parts.bar, parts.facts, parts.stages]) part.hidden = !runs;
  say(parts.why, why(job));
  if (!runs) return;
  parts.bar.setAttribute("aria-label", `Job ${job.id}`);
  if (job.bytes_found && job.scan_ended) parts.bar.value = Math.min(1, job.bytes_done / job.bytes_found);
  else parts.bar.removeAttribute("value");
  fill(parts.facts, facts(job));
  stages(parts.stages, job.limited_by);
}

function show(list, wanted, open, done) {
  wanted.forEach((job, at) => {
    let parts = rows.get(job.id);
    if (!parts) rows.set(job.id, (parts = make(job, open)));
    update(parts, job, done);
    if (list.children[at] !== parts.row) list.insertBefore(parts.row, list.children[at] ?? null);
  });
  while (list.children.length > wanted.length) list.lastElementChild.remove();
}

export function render(waitingCount, open, done) {
  const all = [...jobs.values()];
  const running = all.filter((job) => job.state === "running").sort((a, b) => a.id - b.id);
  const waiting = all.filter((job) => job.state !== "running" && !isOver(job));
  waiting.sort((a, b) => b.priority - a.priority || a.id - b.id);
  const some = waiting.slice(0, WAITING_SHOWN);
  const kept = new Set([...running, ...some].map((job) => job.id));
  for (const id of rows.keys()) if (!kept.has(id)) rows.delete(id);
  show(byId("running"), running, open, done);
  show(byId("waiting"), some, open, done);
  byId("none-running").hidden = running.length > 0;
  byId("waiting-title").hidden = some.length === 0;
  const more = waitingCount - some.length;
  byId("more-waiting").hidden = more <= 0;
  say(byId("more-waiting"), `and ${count(more)} more waiting`);
}
