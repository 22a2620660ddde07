// Formats numbers and times for people, and creates elements from plain text.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const BITS = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];

function scaled(number, step, units) {
  let at = 0;
  while (number >= step && at < units.length - 1) {
    number /= step;
    at += 1;
  }
  const digits = at === 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return `${number.toFixed(digits)} ${units[at]}`;
}

export const bytes = (number) => (number === null || number === undefined ? "–" : scaled(number, 1024, BINARY));
// Formats bytes per second as bits per second.
export const rate = (number) => (number === null || number === undefined ? "–" : scaled(number * 8, 1000, BITS));
export const count = (number) => (number === null || number === undefined ? "–" : number.toLocaleString("en"));

export function perSecond(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  return `${number >= 10 ? count(Math.round(number)) : number.toFixed(1)} /s`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function moment(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const time = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  if (time.toDateString() === new Date().toDateString()) return clock;
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock.slice(0, 5)}`;
}

// Replaces invisible characters and those that change the text direction, which names may contain.
export const shown = (text) =>
  String(text ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");

// Creates an element. Strings become text, never markup.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export const byId = (id) => document.getElementById(id);

// Sets the text only if it differs. Otherwise a screen reader would read it again.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The stages of the pipeline, in the order of the data flow.
export const STAGES = [
  ["scan", "Scan"], ["source_reads", "Read"], ["sender_cpu", "Hash and send"], ["path", "Path"],
  ["receiver_cpu", "Check"], ["target_writes", "Write"],
];
const LIMITS = {
  start_up: "start-up", scan: "the scan of the source", source_reads: "reading at the source",
  sender_cpu: "the sender's processor", path: "the path", own_rate: "the rate limit of the job",
  allowed_rate: "the rate limit of the other host", receiver_cpu: "the receiver's processor",
  target_writes: "writing at the target", queue: "the queue of a busy host", connection: "a lost connection",
  unknown: "unknown",
};
const STAGE_OF = { own_rate: "path", allowed_rate: "path", connection: "path", queue: "receiver_cpu" };

export const limit = (word) => LIMITS[word] ?? shown(word);
export const stageOf = (word) => STAGE_OF[word] ?? word;
