// Transfers of other users at the daemon of this host, if the runner can open its socket.

import { bytes, byId, count, element, rate, say, shown, span } from "./format.js";

const SHOWN = 200;

function row(transfer) {
  const way = transfer.probe ? "probe" : { receive: "receives", send: "sends" }[transfer.direction] ?? "waits";
  const found = transfer.bytes_found === null ? "" : ` of ${bytes(transfer.bytes_found)}`;
  const reason = transfer.waits && transfer.reason ? element("p", { class: "quiet" }, shown(transfer.reason)) : null;
  return element("tr", {},
    element("td", {}, element("b", {}, shown(transfer.name)), ` ${way}`,
      element("p", { class: "path" }, shown(transfer.path)), element("p", { class: "quiet wide" }, shown(transfer.from)), reason),
    element("td", {}, `${bytes(transfer.bytes)}${found}, ${count(transfer.files)} files`),
    element("td", {}, rate(transfer.bytes_per_second)),
    element("td", { class: "wide" }, span(transfer.eta_seconds)),
    element("td", { class: "wide" }, count(transfer.lanes)));
}

export function show({ status, why }) {
  const table = byId("daemon");
  const transfers = status?.transfers ?? [];
  table.hidden = transfers.length === 0;
  if (!status) return say(byId("daemon-why"), `Transfers of the daemon are not shown: ${shown(why)}.`);
  const draining = status.draining ? "; draining: new transfers are refused" : "";
  const more = transfers.length > SHOWN ? `, showing the first ${SHOWN}` : "";
  const word = transfers.length === 1 ? "transfer" : "transfers";
  say(byId("daemon-why"), `${shown(status.listen)}: ${count(transfers.length)} ${word}${more}${draining}`);
  table.tBodies[0].replaceChildren(...transfers.slice(0, SHOWN).map(row));
}
