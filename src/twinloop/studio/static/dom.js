// Build elements. Texts become text nodes, so that no name or label of a dataset is ever read as HTML.

export function h(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key in made && typeof value !== "string") made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return parent;
}

// Whether a key that was pressed is text, or belongs to a dialog, so that it is no command of the page.
export const isTyped = (event) =>
  event.target.matches("input:not([type=checkbox], [type=range]), textarea, select") || event.ctrlKey || event.metaKey || event.altKey || Boolean(document.querySelector("dialog"));

export const empty = (title, text, ...more) => h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text), more);

// A number with four significant digits, or a dash where there is none.
export function format(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  return String(Number(value.toPrecision(4)));
}

// A link to the form of a command, with proposed values of its flags.
export const start = (command, given, text) => h("a", { href: `/start/${encodeURIComponent(command)}?${new URLSearchParams(given)}` }, text);

// A unit as people write it; LeRobot's ranges of joints are numbers without a unit.
export const unit = (name) => ({ range_m100_100: "±100", range_0_100: "0–100" })[name] ?? name;

export const seconds = (value) => `${value.toFixed(value < 10 ? 2 : 1)} s`;

let hiding = 0;
export function notify(text, action) {
  const notice = document.getElementById("notice");
  fill(notice, h("span", {}, text), action ? h("button", { onclick: action.run }, action.label) : null);
  notice.className = "shown";
  clearTimeout(hiding);
  hiding = setTimeout(() => (notice.className = ""), 6000);
}
