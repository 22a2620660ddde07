// The page. Loads the lists, then applies the events of the stream, and redraws at most four times a second.

import { byId, count, perSecond, rate, say, shown, span } from "./format.js";
import { followAll, get, keepToken, Refused, Stranger, takeToken } from "./api.js";
import { draw } from "./chart.js";
import * as daemon from "./daemon.js";
import * as detail from "./detail.js";
import * as history from "./history.js";
import { isOver, isReported, jobs, progress, render, report, reportsSoFar, take, totals } from "./jobs.js";
import * as submit from "./submit.js";

let counts = {};
let drawn = 0;
let wanted = false;
const past = [];
const PAST_SECONDS = 300;

const news = (text) => say(byId("news"), text);
const fail = (error) => news(error.message);
const open = (id) => detail.open(id, done).catch(fail);

// Shows the job in the response to an order, unless the stream has reported a later state.
function done(order, job, since) {
  if (!isReported(job.id, since)) changed(job);
  if (order === "rerun") open(job.id);
}

function changed(job, ended = false) {
  const before = jobs.get(job.id);
  if (isOver(job)) {
    jobs.delete(job.id);
    if (before || ended) {
      history.add(job, open);
      news(`Job ${job.id}, ${shown(job.label)}, is ${job.state}`);
    }
  } else take(job);
  if (detail.isOpen(job.id)) detail.show(jobs.get(job.id) ?? job, done);
  soon();
}

async function reload() {
  const since = reportsSoFar();
  const [status, running, waiting] = await Promise.all([
    get("/status"), get("/jobs?state=running&limit=500"), get("/jobs?state=waiting,queued,paused&limit=100"),
  ]);
  say(byId("host"), `on ${shown(status.host)}`);
  counts = status.jobs;
  for (const id of jobs.keys()) if (!isReported(id, since)) jobs.delete(id);
  [...running.jobs, ...waiting.jobs].filter((job) => !isReported(job.id, since)).forEach(take);
  await history.load(open, { more: false });
  soon();
}

const told = {
  hello: ({ reset }) => {
    byId("link").dataset.state = "live";
    say(byId("link"), "live");
    if (reset) reload().catch(fail);
  },
  job: ({ event, job }) => {
    report(job?.id ?? event.job);
    if (event && detail.isOpen(event.job)) detail.addEvent(event);
    // A short job may already have ended at its first event, which then has the final state.
    if (job) changed(job, event?.event === job.state);
    else if (event) jobs.delete(event.job);
  },
  progress: (reports) => {
    for (const report of reports) {
      progress(report);
      if (detail.isOpen(report.id) && jobs.has(report.id)) {
        detail.sample(report);
        detail.show(jobs.get(report.id), done);
      }
    }
    soon();
  },
  counts: (now) => {
    counts = now;
    soon();
  },
  daemon: daemon.show,
};

// Schedules a redraw, at least a quarter of a second after the previous one.
function soon() {
  if (wanted) return;
  wanted = true;
  setTimeout(() => requestAnimationFrame(show), Math.max(0, drawn + 250 - performance.now()));
}

function show() {
  [wanted, drawn] = [false, performance.now()];
  const waiting = (counts.waiting ?? 0) + (counts.queued ?? 0) + (counts.paused ?? 0);
  render(waiting, open, done);
  const sum = totals();
  say(byId("total-rate"), rate(sum.rate));
  say(byId("total-files"), perSecond(sum.files));
  say(byId("count-running"), count(counts.running ?? 0));
  say(byId("count-waiting"), count(waiting));
  say(byId("count-failed"), count((counts.failed ?? 0) + (counts.expired ?? 0)));
  document.title = counts.running ? `${rate(sum.rate)}, ${counts.running} running – zmove` : "zmove";
}

function tick() {
  const now = performance.now() / 1000;
  past.push([now, totals().rate]);
  while (past[0][0] < now - PAST_SECONDS) past.shift();
  const ago = (time) => (now - time < 1 ? "now" : `${span(now - time)} ago`);
  draw(byId("total-chart"), past, { write: rate, when: ago, what: "Rate of all jobs", factor: 8, height: 84 });
}

async function live() {
  byId("board").hidden = false;
  byId("open-new").hidden = false;
  byId("token").hidden = true;
  byId("again").hidden = true;
  try {
    await followAll((event, data) => told[event]?.(data), (why) => {
      byId("link").dataset.state = "lost";
      say(byId("link"), `${why}; reconnecting`);
    });
  } catch (error) {
    if (error instanceof Stranger) stop(error.message);
    else if (error instanceof Refused) askForToken(error.message);
    else throw error;
  }
}

// Sends no further requests until the user asks for it.
function stop(why) {
  byId("link").dataset.state = "off";
  say(byId("link"), `${why}: stopped sending requests`);
  byId("again").hidden = false;
}

function askForToken(why) {
  // Open dialogs would cover the token prompt. Text typed into them is kept.
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  byId("board").hidden = true;
  byId("open-new").hidden = true;
  byId("token").hidden = false;
  byId("link").dataset.state = "off";
  say(byId("link"), "not allowed");
  say(byId("token-error"), why);
  byId("word").focus();
}

byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("word").value);
  byId("word").value = "";
  live();
});
byId("again").addEventListener("click", live);
// Handles a token that the user adds to the address of the open page.
addEventListener("hashchange", () => {
  if (takeToken()) location.reload();
});
for (const button of document.querySelectorAll("dialog .close")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
byId("history-filter").addEventListener("change", () => history.load(open, { more: false }).catch(fail));
byId("older").addEventListener("click", () => history.load(open, { more: true }).catch(fail));
submit.begin((job, since) => {
  if (!isReported(job.id, since)) changed(job);
  news(`Job ${job.id} was submitted`);
});
detail.begin();
takeToken();
setInterval(tick, 1000);
live();
