// The runner as this page asks it. Over TCP each request has the token, which this tab alone keeps.

const KEY = "zmove-token";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function takeToken() {
  // What stands behind the # is never sent to anybody.
  const given = decodeURIComponent(location.hash.slice(1)).replace(/^token=/, "").trim();
  if (/^[!-~]{32,}$/.test(given)) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const keepToken = (word) => sessionStorage.setItem(KEY, word.trim());

function headers(more) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function ask(path, options) {
  const answer = await fetch(`/api/v1${path}`, { credentials: "omit", cache: "no-store", ...options });
  if (answer.ok) return answer;
  let error = `the runner answers ${answer.status}`;
  try {
    error = (await answer.json()).error ?? error;
  } catch {
    // It has no words for it.
  }
  throw new Refused(answer.status, error);
}

export const get = async (path) => (await ask(path, { headers: headers({}) })).json();
export const text = async (path) => (await ask(path, { headers: headers({}) })).text();
export async function post(path, body) {
  const json = { "Content-Type": "application/json" };
  return (await ask(path, { method: "POST", headers: headers(json), body: JSON.stringify(body ?? null) })).json();
}

// Events from where this page has come to, until the connection ends. EventSource could not send the token.
async function follow(last, tell) {
  const known = last === null ? {} : { "Last-Event-ID": String(last) };
  const stop = new AbortController();
  // The runner says something every 15 s.
  let alarm = setTimeout(() => stop.abort(), 40000);
  try {
    const answer = await ask("/events", { headers: headers(known), signal: stop.signal });
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

// Follows for ever. `told` gets each event, `lost` why there is no connection; it ends where the token is refused.
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
      if (error instanceof Refused && error.status === 401) throw error;
      if (error instanceof Refused) why = error.message;
    }
    lost(why);
    await new Promise((resume) => setTimeout(resume, pause));
    pause = Math.min(pause * 2, 5000);
  }
}
