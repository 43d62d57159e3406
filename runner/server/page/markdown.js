// SPDX-License-Identifier: Apache-2.0
"use strict";
// Markdown as elements of the document. A text of a model only ever becomes a text node: there is no
// HTML to sanitize.

const DEEPEST = 12;  // lists and quotations in each other
const SCHEMES = ["http:", "https:", "mailto:"];
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const ITEM = /^( *)([-*+]|(\d{1,9})[.)])( +|$)/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const DIVIDER = /^ *\|?( *:?-+:? *\|)+( *:?-+:? *)?$|^ *\| *:?-+:? *$/;
const INLINE = new RegExp([
  /\\([!-/:-@[-`{-~])/,                            // 1: an escaped character
  /(?<!`)(`+)(?!`)([^]*?[^`])\2(?!`)/,              // 3: code
  // 4, 5: a link or an image
  /!?\[([^\]]{0,500})\]\(\s*((?:[^()\s]|\([^()\s]*\))+)(?:\s+"[^"]*")?\)/,
  /\*\*\*(?=[^\s*])([^*]*[^\s*])\*\*\*/,           // 6: strong emphasis
  /\*\*(?=\S)([^]*?\S)\*\*/,                       // 7: strong
  /\*(?=\S)((?:[^*]|\*\*[^*]*\*\*)+)(?<!\s)\*/,    // 8: emphasis
  /(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)/,        // 9: emphasis
  /(?<!\w)__(?=[^\s_])([^_]*[^\s_])__(?!\w)/,      // 10: strong
  /~~(?=\S)([^]*?\S)~~/,                           // 11: deleted
  /<(https?:\/\/[^\s<>]+)>/,                        // 12: an address
  /(https?:\/\/[^\s<>"')\]]+[^\s<>"')\].,;:!?])/,  // 13: an address
].map(part => part.source).join("|"), "g");

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

// Null where the address could do anything but open a page or a mail.
function link(address, children) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!SCHEMES.includes(url.protocol)) return null;
  const made = element("a", ...children);
  made.href = url.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}

function inlineNode(found, deep) {
  const inner = text => inline(text, deep + 1);
  if (found[1]) return found[1];
  if (found[2]) return element("code", found[3].trim() || found[3]);
  if (found[5]) return link(found[5], found[4] ? inner(found[4]) : [found[5]]) || found[0];
  if (found[6]) return element("em", element("strong", ...inner(found[6])));
  const strong = found[7] || found[10], emphasis = found[8] || found[9];
  if (strong) return element("strong", ...inner(strong));
  if (emphasis) return element("em", ...inner(emphasis));
  if (found[11]) return element("del", ...inner(found[11]));
  const address = found[12] || found[13];
  return link(address, [address]) || found[0];
}

function inline(text, deep = 0) {
  if (deep > DEEPEST) return [text];
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(text.slice(at, found.index), inlineNode(found, deep));
    at = found.index + found[0].length;
  }
  nodes.push(text.slice(at));
  return nodes.filter(node => node !== "");
}

function codeBlock(lines, language) {
  const code = element("code", lines.join("\n"));
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.dataset.copy = "";
  copy.setAttribute("aria-label", "Copy code" + (language ? " in " + language : ""));
  const shown = element("pre", code);
  shown.tabIndex = 0;  // long lines scroll by keyboard
  const block = element("figure", element("figcaption", element("span", language), copy), shown);
  block.className = "code";
  return block;
}

function cells(line, name) {
  const inner = line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/);
  const made = inner.map(text => element(name, ...inline(text.trim().replace(/\\\|/g, "|"))));
  return element("tr", ...made);
}

function begins(line, next) {
  return FENCE.test(line) || /^ {0,3}(#{1,6}( |$)|>)/.test(line) || RULE.test(line) ||
    ITEM.test(line) || (line.includes("|") && DIVIDER.test(next || ""));
}

// How many lines from the front an item of a list goes on for: blank ones and one more, or none.
function itemGoesOn(lines, inside, held) {
  let blank = 0;
  while (blank < lines.length && lines[blank].trim() === "") ++blank;
  if (blank === lines.length) return 0;
  const text = held.at(-1).trim() !== "" && !FENCE.test(held.at(-1));
  const lazy = blank === 0 && text && !begins(lines[0], lines[1]);
  return lazy || inside.test(lines[blank]) ? blank + 1 : 0;
}

// Each reader takes the lines of one block from the front of `lines`; null: not such a block.
const READERS = [
  function fenced(lines) {
    const open = FENCE.exec(lines[0]);
    if (!open) return null;
    lines.shift();
    const held = [];
    const closes = line => line.trim().startsWith(open[1]) && !/[^`~\s]/.test(line);
    while (lines.length && !closes(lines[0])) held.push(lines.shift());
    lines.shift();
    return codeBlock(held, open[2]);
  },
  function heading(lines) {
    const found = /^ {0,3}(#{1,6})(?: +(.*?))?(?: +#+)? *$/.exec(lines[0]);
    if (!found) return null;
    lines.shift();
    // h1 is the page's own.
    return element("h" + Math.min(6, found[1].length + 1), ...inline(found[2] || ""));
  },
  function rule(lines) {
    return RULE.test(lines[0]) ? (lines.shift(), element("hr")) : null;
  },
  function quotation(lines, deep) {
    const held = [];
    while (lines.length && /^ {0,3}>/.test(lines[0])) {
      held.push(lines.shift().replace(/^ {0,3}> ?/, ""));
    }
    return held.length ? element("blockquote", ...blocks(held, deep + 1)) : null;
  },
  function list(lines, deep) {
    const first = ITEM.exec(lines[0]);
    if (!first) return null;
    const made = element(first[3] ? "ol" : "ul");
    if (first[3] && first[3] !== "1") made.start = Number(first[3]);
    let found;
    while (lines.length && (found = ITEM.exec(lines[0])) && !RULE.test(lines[0]) &&
        found[1].length <= first[1].length + 1 && !found[3] === !first[3]) {
      const held = [lines.shift().slice(found[0].length)];
      const inside = new RegExp("^ {" + (first[1].length + 2) + "}");
      const most = found[0].length;
      for (let count; (count = itemGoesOn(lines, inside, held));) {
        for (const line of lines.splice(0, count)) {
          held.push(line.replace(/^ */, blank => blank.slice(most)));
        }
      }
      made.append(element("li", ...blocks(held, deep + 1)));
      const next = lines.findIndex(line => line.trim() !== "");
      if (next > 0 && ITEM.test(lines[next])) lines.splice(0, next);
    }
    return made;
  },
  function table(lines) {
    if (lines.length < 2 || !lines[0].includes("|") || !DIVIDER.test(lines[1])) return null;
    const head = element("thead", cells(lines.shift(), "th"));
    lines.shift();
    const body = element("tbody");
    while (lines.length && lines[0].includes("|")) body.append(cells(lines.shift(), "td"));
    const shown = element("div", element("table", head, body));
    shown.className = "wide";
    shown.tabIndex = 0;
    return shown;
  },
  function paragraph(lines) {
    const held = [lines.shift()];
    while (lines.length && lines[0].trim() !== "" && !begins(lines[0], lines[1])) {
      held.push(lines.shift());
    }
    return element("p", ...inline(held.join("\n").trim()));
  },
];

function blocks(lines, deep) {
  if (deep > DEEPEST) return [element("p", lines.join("\n"))];
  const made = [];
  while (lines.length) {
    if (lines[0].trim() === "") {
      lines.shift();
      continue;
    }
    for (const read of READERS) {
      const block = read(lines, deep);
      if (block) {
        made.push(block);
        break;
      }
    }
  }
  return made;
}

function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), 0);
}
