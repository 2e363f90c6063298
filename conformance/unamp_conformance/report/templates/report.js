"use strict";
// What comes from the report is only ever written as text.
(() => {
  const dialog = document.getElementById("drill");
  let data;

  function make(name, options = {}, ...children) {
    const { text, className, ...attributes } = options;
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // The checks behind a cell: {preset: [[check, status, error, bound, note], ...]}.
  function behind(button) {
    data ??= JSON.parse(document.getElementById("cells").textContent);
    const run = data.runs[button.closest("table").dataset.run];
    return run[button.closest("tr").dataset.row][button.dataset.column];
  }

  function sign(status) {
    const shown = document.querySelector(`#about .status.${status.replace(" ", "-")}`);
    return shown.cloneNode(true).querySelector(".sign").textContent;
  }

  function outcome(entry) {
    const [, number, error, bound] = entry;
    const status = data.statuses[number];
    const share = bound && error != null ? ` ${Math.round((100 * error) / bound)} %` : "";
    const shown = make("span", { className: `status ${status.replace(" ", "-")}` });
    shown.append(make("span", { "aria-hidden": "true", text: `${sign(status)} ` }));
    if (share) shown.append(make("span", { className: "hidden", text: `${status}, error ` }), share.trim());
    else shown.append(status);
    if (share) shown.title = `error ${error}, bound ${bound}`;
    return shown;
  }

  function table(presets, of) {
    const all = Object.values(presets).flat();
    const checks = [...new Set(all.map((entry) => entry[0]))].sort((a, b) => a - b);
    const head = make("tr", {}, make("th", { scope: "col", text: of }));
    head.append(...checks.map((check) => make("th", { scope: "col", text: data.checks[check] })));
    const rows = Object.entries(presets).map(([preset, entries]) => {
      const row = make("tr", {}, make("th", { scope: "row", text: preset || "–" }));
      for (const check of checks) {
        const found = entries.filter((entry) => entry[0] === check);
        row.append(make("td", {}, ...found.map(outcome)));
      }
      return row;
    });
    return make("div", { className: "wide" },
      make("table", { className: "drilled" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  // What went wrong is in the page in full: the dialog shows a copy. Of what is known or was not run it tells the reason.
  function notes(presets) {
    const entries = Object.values(presets).flat().filter((entry) => entry.length > 4);
    const copies = entries.filter((entry) => typeof entry[4] === "string").map((entry) => {
      const copy = document.getElementById(entry[4]).cloneNode(true);
      copy.removeAttribute("id");
      return copy;
    });
    if (copies.length === 1) copies[0].open = true;
    const reasons = new Set(entries.filter((entry) => typeof entry[4] === "number").map((entry) => data.notes[entry[4]]));
    return [...copies, ...[...reasons].filter(Boolean).map((reason) => make("p", { className: "notice", text: reason }))];
  }

  function drill(button) {
    const presets = behind(button);
    const run = button.closest("table").caption.textContent;
    document.getElementById("drill-title").textContent = `${button.dataset.name}: ${run}`;
    const hint = "A percentage is the error's share of its bound.";
    const measured = Object.values(presets).flat().some((entry) => entry[3] != null);
    document.getElementById("drill-body").replaceChildren(
      table(presets, button.closest("table").dataset.of), ...(measured ? [make("p", { className: "hint", text: hint })] : []), ...notes(presets));
    dialog.showModal();
    scrollable(dialog);
    dialog.scrollTop = 0;
  }

  // One stop of the tab key for each matrix; arrows move inside it.
  function rove(matrix) {
    const buttons = [...matrix.querySelectorAll("button")];
    const focus = (chosen) => {
      for (const button of buttons) button.tabIndex = button === chosen ? 0 : -1;
    };
    focus(buttons.find((button) => !button.classList.contains("passed")) ?? buttons[0]);
    matrix.addEventListener("focusin", (event) => focus(event.target));
    matrix.addEventListener("keydown", (event) => {
      const [across, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [];
      if (across === undefined) return;
      event.preventDefault();
      const cell = event.target.closest("td");
      const rows = [...matrix.querySelectorAll("tbody tr")];
      let row = rows.indexOf(cell.parentElement);
      let column = cell.cellIndex;
      do {
        row += down;
        column += across;
        const button = rows[row]?.cells[column]?.querySelector("button");
        if (button) return button.focus();
      } while (rows[row]?.cells[column]);
    });
  }

  function reveal() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let inside = target; inside; inside = inside.parentElement) if (inside.tagName === "DETAILS") inside.open = true;
    target.scrollIntoView();
  }

  // What goes on at the right fades there, until it is scrolled to its end.
  function fade(wide) {
    wide.classList.toggle("more", wide.scrollLeft + wide.clientWidth < wide.scrollWidth - 1);
    wide.onscroll = () => fade(wide);
  }

  // What scrolls sideways can be reached and scrolled by keyboard. What is folded away is not asked: it would be laid out for it.
  function scrollable(inside) {
    for (const wide of inside.querySelectorAll(".wide")) {
      if (wide.closest("details:not([open])")) continue;
      if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
      else wide.removeAttribute("tabindex");
      fade(wide);
    }
  }

  function filter(field) {
    const items = [...document.querySelectorAll(`#${field.dataset.filter} [data-item]`)];
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      for (const item of items) item.hidden = !item.dataset.item.toLowerCase().includes(wanted);
    });
  }

  // On paper everything is open. Browsers that know `::details-content` do it in the style sheet.
  function printing(on) {
    for (const details of document.querySelectorAll(on ? "details:not([open])" : "details[data-printed]")) {
      details.open = on;
      details.toggleAttribute("data-printed", on);
    }
  }

  for (const matrix of document.querySelectorAll(".matrix")) {
    rove(matrix);
    matrix.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) drill(button);
    });
  }
  for (const field of document.querySelectorAll("[data-filter]")) filter(field);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });
  addEventListener("hashchange", reveal);
  addEventListener("resize", () => scrollable(document));
  document.addEventListener("toggle", (event) => scrollable(event.target), true);
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  reveal();
  scrollable(document);
})();
