// The form for a new transfer, which can be submitted only after a preview of exactly the same values.

import { bytes, byId, count, element, say, shown } from "./format.js";
import { post } from "./api.js";
import { reportsSoFar } from "./jobs.js";

let previewed = null;

function words() {
  const value = (id) => byId(id).value.trim() || undefined;
  const list = (id, split) => byId(id).value.split(split).map((word) => word.trim()).filter((word) => word !== "");
  return {
    sources: list("sources", "\n"), target: byId("target").value.trim(), label: value("label"), at: value("at"),
    every: value("every"), deadline: value("deadline"), limit: value("limit"), verify: value("verify"),
    after: list("after", /[,\s]+/).map(Number), exclude: list("exclude", ","), priority: Number(byId("priority").value),
    checksum: byId("checksum").checked, delete: byId("delete").checked,
  };
}

function forget() {
  previewed = null;
  byId("submit").disabled = true;
  byId("plan").hidden = true;
  say(byId("new-error"), "");
  say(byId("submit-help"), "Run a preview first. It changes nothing.");
}

function showPlan(plan) {
  const all = `${count(plan.added)} new, ${count(plan.changed)} changed, ${count(plan.removed)} to be removed; `;
  say(byId("plan-sum"), `${all}${count(plan.files)} files with ${bytes(plan.bytes)} would be sent.`);
  say(byId("plan-removes"), plan.removed > 0 ? `${count(plan.removed)} entries at the target would be removed.` : "");
  const signs = { added: "+", changed: "~", removed: "−" };
  byId("plan-sample").replaceChildren(...plan.sample.map((change) => {
    const why = change.why ? ` (${shown(change.why)})` : "";
    return element("li", {}, `${signs[change.event] ?? "?"} ${shown(change.path)}${why}`);
  }));
  byId("plan").hidden = false;
}

async function working(button, name, work) {
  const before = button.textContent;
  button.textContent = name;
  button.disabled = true;
  try {
    await work();
  } catch (error) {
    say(byId("new-error"), error.message);
  }
  button.textContent = before;
  button.disabled = false;
}

async function preview() {
  if (!byId("new-form").reportValidity()) return;
  forget();
  const asked = words();
  await working(byId("preview"), "Running preview…", async () => {
    showPlan(await post("/plans", asked));
    // The form has changed during the preview.
    if (JSON.stringify(words()) !== JSON.stringify(asked)) return forget();
    previewed = asked;
    say(byId("submit-help"), "");
  });
  byId("submit").disabled = previewed === null;
}

export function begin(submitted) {
  const dialog = byId("new");
  // Retries use the same id, so that a retry after a lost response creates no second job.
  let id = crypto.randomUUID();
  byId("open-new").addEventListener("click", () => {
    forget();
    dialog.showModal();
    byId("sources").focus();
  });
  byId("new-form").addEventListener("input", () => {
    forget();
    id = crypto.randomUUID();
  });
  byId("new-form").addEventListener("submit", (event) => {
    // Otherwise the Enter key would close the dialog.
    event.preventDefault();
    preview();
  });
  byId("preview").addEventListener("click", preview);
  byId("submit").addEventListener("click", () =>
    working(byId("submit"), "Submitting…", async () => {
      const since = reportsSoFar();
      const job = await post("/jobs", { ...previewed, submission_id: id });
      id = crypto.randomUUID();
      dialog.close();
      byId("new-form").reset();
      submitted(job, since);
    }));
}
