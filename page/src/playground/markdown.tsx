// Markdown as elements of the page. No HTML of the text is interpreted, so that none has to be cleaned.
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { Copy } from "../parts/copy";

export function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown" dir="auto">
      {blocks(text).map((block, place) => (
        <Block key={place} text={block} />
      ))}
    </div>
  );
}

// While a response grows, only its last block is drawn again.
function Block({ text }: { text: string }) {
  return useMemo(() => <>{block(text)}</>, [text]);
}

// Blocks are separated by blank lines, except within fenced code.
export function blocks(text: string): string[] {
  const found: string[] = [];
  let lines: string[] = [];
  let fence = "";
  const flush = () => {
    if (lines.length) found.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = /^\s*(```+|~~~+)/.exec(line)?.[1] ?? "";
    if (fence) {
      lines.push(line);
      if (mark.startsWith(fence)) {
        fence = "";
        flush();
      }
    } else if (mark) {
      flush();
      fence = mark;
      lines.push(line);
    } else if (line.trim()) {
      if (/^#{1,6} /.test(line)) flush();
      lines.push(line);
      if (/^#{1,6} /.test(line)) flush();
    } else flush();
  }
  flush();
  return found;
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function block(text: string): ComponentChildren {
  const lines = text.split("\n");
  const first = lines[0]!;
  const fence = /^\s*(```+|~~~+)\s*(\S*)/.exec(first);
  if (fence) return <Code language={fence[2]!} text={fenced(lines, fence[1]!)} />;
  const heading = /^(#{1,6}) (.*)/.exec(first);
  if (heading) return <p class={`heading h${heading[1]!.length}`}>{inline(heading[2]!)}</p>;
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(text)) return <hr />;
  if (lines.every((line) => /^\s*>/.test(line))) {
    return <blockquote>{block(lines.map((line) => line.replace(/^\s*> ?/, "")).join("\n"))}</blockquote>;
  }
  if (lines.length > 1 && first.includes("|") && /^[\s|:-]+$/.test(lines[1]!) && lines[1]!.includes("-")) return <Table lines={lines} />;
  const list = lines.findIndex((line) => ITEM.test(line));
  if (list === 0) return <List lines={lines} />;
  if (list > 0 && /^\s*([-*+]|1[.)])\s/.test(lines[list]!)) {
    return [<p>{inline(lines.slice(0, list).join("\n"))}</p>, <List lines={lines.slice(list)} />];
  }
  return <p>{inline(text)}</p>;
}

function fenced(lines: string[], fence: string): string {
  const closed = lines.length > 1 && lines.at(-1)!.trim().startsWith(fence);
  return lines.slice(1, closed ? -1 : undefined).join("\n");
}

function Code({ language, text }: { language: string; text: string }) {
  return (
    <div class="code">
      <div class="row">
        <span class="muted small">{language || "code"}</span>
        <span class="space" />
        <Copy text={text} label="Copy code" quiet />
      </div>
      <pre tabIndex={0} dir="ltr">
        {text}
      </pre>
    </div>
  );
}

// Items of the first line's depth; deeper lines belong to the item above them.
function List({ lines }: { lines: string[] }) {
  const [, indent = "", mark = ""] = ITEM.exec(lines[0]!) ?? [];
  const items: { text: string; below: string[] }[] = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1]!.length <= indent.length) items.push({ text: item[3]!, below: [] });
    else if (item || items.at(-1)?.below.length) items.at(-1)?.below.push(line);
    else if (items.length) items.at(-1)!.text += `\n${line.trim()}`;
  }
  const shown = items.map((item, place) => (
    <li key={place}>
      {inline(item.text)}
      {item.below.length > 0 && <List lines={item.below} />}
    </li>
  ));
  return /\d/.test(mark) ? <ol start={parseInt(mark)}>{shown}</ol> : <ul>{shown}</ul>;
}

function Table({ lines }: { lines: string[] }) {
  const cells = (line: string) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Table of the response">
      <table>
        <thead>
          <tr>{cells(lines[0]!).map((cell, place) => <th key={place}>{cell}</th>)}</tr>
        </thead>
        <tbody>
          {lines.slice(2).map((line, row) => (
            <tr key={row}>{cells(line).map((cell, place) => <td key={place}>{cell}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const INLINE = /(`+)([\s\S]+?)\1(?!`)|\*\*(?=\S)([\s\S]+?)\*\*|(?<![\w*])\*(?=[^\s*])([^*\n]+?)\*(?!\w)|~~([\s\S]+?)~~|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

function inline(text: string): ComponentChildren[] {
  const found: ComponentChildren[] = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    found.push(text.slice(end, match.index));
    end = match.index + match[0].length;
    const [, , code, strong, emphasis, deleted, label, address] = match;
    if (code !== undefined) found.push(<code dir="ltr">{code}</code>);
    else if (strong !== undefined) found.push(<strong>{inline(strong)}</strong>);
    else if (emphasis !== undefined) found.push(<em>{inline(emphasis)}</em>);
    else if (deleted !== undefined) found.push(<del>{inline(deleted)}</del>);
    else found.push(<a href={address} target="_blank" rel="noopener noreferrer nofollow">{label}</a>);
  }
  return [...found, text.slice(end)];
}
