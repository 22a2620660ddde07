// Requests to the runner. Over TCP each request carries the token, which only this browser tab stores. A refused token
// is deleted, so that another program at the runner's former address does not receive it repeatedly.

const KEY = "zmove-token";
// Key of a flag that is set once a runner has accepted the token.
const TAKEN = "zmove-token-taken";
const BEGUN_ANEW = "the runner was restarted: its new token is in the file 'token' in the jobs directory";
const NO_WORD = "the text after # is not a token: copy the entire contents of the file 'token'";

// Reason why the user is asked for the token, or an empty string.
let why = "";
let fromAddress = false;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The response did not come from a runner.
export class Stranger extends Error {}

// Takes the token from the part of the address after #, which browsers never send.
export function takeToken() {
  const given = location.hash.slice(1).replace(/^token=/, "").trim();
  // The page's own links also use this part of the address.
  if (given === "" || document.getElementById(given)) return false;
  history.replaceState(null, "", location.pathname);
  if (/^[0-9A-Za-z]{32,}$/.test(given)) {
    keepToken(given);
    fromAddress = true;
    return true;
  }
  why = NO_WORD;
  return false;
}

export function keepToken(word) {
  sessionStorage.setItem(KEY, word.trim());
  sessionStorage.removeItem(TAKEN);
  [why, fromAddress] = ["", false];
}

function refused(error) {
  const had = sessionStorage.getItem(KEY) !== null;
  if (had) why = sessionStorage.getItem(TAKEN) ? BEGUN_ANEW : error;
  if (had && fromAddress && why === error) {
    why = "the token after # is not the token in the file 'token' in the jobs directory";
  }
  sessionStorage.removeItem(KEY);
  sessionStorage.removeItem(TAKEN);
  return new Refused(401, why);
}

function headers(more) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

// Sends a request and expects a response of this content type.
async function ask(path, kind, options) {
  const terms = { credentials: "omit", cache: "no-store", redirect: "manual", ...options };
  const answer = await fetch(`/api/v1${path}`, terms);
  const is = (wanted) => (answer.headers.get("Content-Type") ?? "").startsWith(wanted);
  if (answer.ok && is(kind)) {
    if (sessionStorage.getItem(KEY)) sessionStorage.setItem(TAKEN, "yes");
    return answer;
  }
  const error = !answer.ok && is(JSON_KIND) ? (await answer.json().catch(() => null))?.error : undefined;
  if (typeof error !== "string") throw new Stranger("the server at this address is not the runner");
  throw answer.status === 401 ? refused(error) : new Refused(answer.status, error);
}

const JSON_KIND = "application/json";
export const get = async (path) => (await ask(path, JSON_KIND, { headers: headers({}) })).json();
export const text = async (path) => (await ask(path, "text/plain", { headers: headers({}) })).text();
export async function post(path, body) {
  const terms = { method: "POST", headers: headers({ "Content-Type": JSON_KIND }), body: JSON.stringify(body ?? null) };
  return (await ask(path, JSON_KIND, terms)).json();
}

// Reads events after number `last` until the connection ends. EventSource could not send the token.
async function follow(last, tell) {
  const known = last === null ? {} : { "Last-Event-ID": String(last) };
  const stop = new AbortController();
  // The runner sends something at least every 15 s.
  let alarm = setTimeout(() => stop.abort(), 40000);
  try {
    const answer = await ask("/events", "text/event-stream", { headers: headers(known), signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(alarm);
      alarm = setTimeout(() => stop.abort(), 40000);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n");
        const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        const [event, id, data] = [field("event"), field("id"), field("data")];
        if (event) tell(event, id === undefined ? null : Number(id), JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(alarm);
    stop.abort();
  }
}

// Follows the stream forever. Calls `told` with each event, and `lost` with the reason when there is no connection.
// Throws if the token is refused or another program answers.
export async function followAll(told, lost) {
  let last = null;
  let pause = 500;
  for (;;) {
    let why = "connection lost";
    try {
      await follow(last, (event, id, data) => {
        pause = 500;
        if (id !== null) last = id;
        told(event, data);
      });
    } catch (error) {
      if (error instanceof Stranger || (error instanceof Refused && error.status === 401)) throw error;
      if (error instanceof Refused) why = error.message;
    }
    lost(why);
    await new Promise((resume) => setTimeout(resume, pause));
    pause = Math.min(pause * 2, 5000);
  }
}
