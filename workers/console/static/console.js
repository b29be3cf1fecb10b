/* What the pages do beyond plain links and forms: charts, copying, keys, and keeping opened parts open when they are
   brought anew. Without it every page still shows and does all. */
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axes(from, to) {
  const words = (_, times) => times.map((time) => new Date(time * 1e3).toISOString().slice(from, to).replace("T", " "));
  const one = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  return [{ ...one, values: words, space: 80 }, { ...one, size: 64 }];
}

function progress(place, points) {
  return new uPlot({
    width: place.clientWidth - 14, height: 190, tzDate: (time) => uPlot.tzDate(new Date(time * 1e3), "Etc/UTC"),
    axes: points[0].at(-1) - points[0][0] > 2 * 86400 ? axes(5, 16) : axes(11, 16), scales: { x: { time: true } },
    series: [
      { label: "time (UTC)" },
      { label: "completed step", stroke: css("--link"), width: 2, spanGaps: false, points: { show: true } },
      { label: "checkpoint", stroke: css("--good"), width: 0, points: { show: true, size: 8, fill: css("--good") } },
    ],
  }, points, place);
}

function weeks(place, points) {
  const colours = ["--bad", "--busy", "--link", "--person", "--good", "--cause", "--calm", "--dim", "--wait"];
  const labels = JSON.parse(place.dataset.labels);
  return new uPlot({
    width: place.clientWidth - 14, height: 220, tzDate: (time) => uPlot.tzDate(new Date(time * 1e3), "Etc/UTC"),
    axes: axes(0, 10), scales: { x: { time: true } },
    series: [
      { label: "week of" },
      ...labels.map((label, at) => ({
        label, stroke: css(colours[at % colours.length]), width: 2, points: { show: true },
      })),
    ],
  }, points, place);
}

function draw(root) {
  for (const place of root.querySelectorAll("[data-chart]")) {
    if (place.firstChild || typeof uPlot === "undefined") continue;
    const points = JSON.parse(place.dataset.points);
    (place.dataset.chart === "weeks" ? weeks : progress)(place, points);
  }
}

document.addEventListener("DOMContentLoaded", () => draw(document));

/* Opened parts stay open, and the focus stays where it was, when a page's piece is brought anew. */
let opened = [];
let focused = null;
document.addEventListener("htmx:beforeSwap", () => {
  opened = [...document.querySelectorAll("details[open][id]")].map((one) => one.id);
  const here = document.activeElement;
  focused = here && here.closest("#fresh") ? [here.tagName, here.getAttribute("href"), here.parentElement.id] : null;
});
document.addEventListener("htmx:afterSettle", () => {
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  if (focused && focused[0] === "SUMMARY") document.getElementById(focused[2])?.firstElementChild?.focus();
  if (focused && focused[0] === "A" && focused[1])
    document.querySelector(`#fresh a[href="${CSS.escape(focused[1])}"]`)?.focus();
  draw(document);
});

/* What the reader has marked or copies is not taken away under the hand. */
document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.target.id === "fresh" && String(getSelection()).length > 0) event.preventDefault();
});

const feed = (words) => { const place = document.getElementById("feed"); if (place) place.textContent = words; };
document.addEventListener("htmx:sseOpen", () => feed("live"));
document.addEventListener("htmx:sseError", () => feed("not live: trying again"));
document.addEventListener("htmx:sendError", () => feed("not live: trying again"));

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const done = () => { button.textContent = "copied"; };
  if (navigator.clipboard) navigator.clipboard.writeText(button.dataset.copy).then(done);
  else {
    const area = document.createElement("textarea");
    area.value = button.dataset.copy;
    document.body.append(area);
    area.select();
    if (document.execCommand("copy")) done();
    area.remove();
  }
});

/* Keys: / searches, j and k go down and up the rows of a table. */
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "/") {
    const search = document.getElementById("search");
    if (search) { event.preventDefault(); search.focus(); }
  } else if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll("tbody tr td:first-child a, tbody tr td:nth-child(2) a:only-child")];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))].focus();
  }
});
