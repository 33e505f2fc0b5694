// An engine whose responses are fixed: the word at the start of the last message selects one.
import { createServer } from "node:http";

export const HTML = `<script>window.broken = 1</script><img src="x" onerror="window.broken = 1"> <b>bold</b>`;
export const MIXED = "مرحبا بالعالم 👩🏽‍🚀 שלום 🎉";
export const LONG = Array.from({ length: 500 }, (_, place) => `Paragraph ${place} with **bold** text, \`code\` and more of the same words.`.padEnd(102, ".")).join("\n\n");
const MARKDOWN = "# Title\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```\n\n[link](https://example.com) [bad](javascript:alert(1))";

const text = (content) => content.match(/[\s\S]{1,40}/g).map((part) => ({ content: part }));
const RESPONSES = {
  html: text(HTML),
  mixed: text(MIXED),
  long: text(LONG),
  markdown: text(MARKDOWN),
  think: [{ reasoning: "First I think. " }, { reasoning: "Then I answer." }, ...text("Done.")],
  json: text('{"name": "Ada", "age": 36}'),
  wrong: text('{"name": "Ada", "age": "old"}'),
  tool: [
    { tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "get_weather", arguments: "" } }] },
    { tool_calls: [{ index: 0, function: { arguments: '{"city":' } }] },
    { tool_calls: [{ index: 0, function: { arguments: ' "Oslo"}' } }] },
  ],
};

// Counters of an engine that generates 50 tokens/s, a quarter of whose prompt tokens are cached.
function counters() {
  const tokens = Math.round(performance.now() / 20);
  return `vllm:generation_tokens_total ${tokens}\nvllm:prompt_tokens_total ${4 * tokens}\nvllm:prompt_tokens_cached_total ${tokens}\n`;
}

export async function startScripted() {
  const server = createServer(async (request, response) => {
    const send = (body) => response.setHeader("Content-Type", "application/json").end(JSON.stringify(body));
    if (request.url === "/v1/models") return send({ data: [{ id: "scripted", object: "model" }] });
    if (request.url === "/load") return send({ running: 3, waiting: 1, kv_usage: 0.42 });
    if (request.url === "/metrics") return response.end(counters());
    if (request.url === "/version") return send({ version: "1", weight_version: "7" });
    if (request.method !== "POST") return send({ status: "ok" });
    let body = "";
    for await (const part of request) body += part;
    await answer(JSON.parse(body), response);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => (server.closeAllConnections(), server.close()) };
}

async function answer(body, response) {
  const last = body.messages.at(-1);
  const word = last.content.split(" ")[0];
  const event = (delta, finish = null) =>
    response.write(`data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 1, model: "scripted", choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`);
  response.setHeader("Content-Type", "text/event-stream");
  if (last.role === "tool") event({ content: `The tool returned ${last.content}.` });
  for (const delta of last.role === "tool" ? [] : (RESPONSES[word] ?? text(`You wrote: ${last.content}`))) event(delta);
  if (word === "break") {
    await new Promise((done) => setTimeout(done, 100));
    return response.destroy();
  }
  for (let count = 0; word === "slow" && count < 600 && !response.closed; count++) {
    event({ content: `${count} ` });
    await new Promise((done) => setTimeout(done, 100));
  }
  event({}, word === "tool" ? "tool_calls" : "stop");
  response.write(`data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 1, model: "scripted", choices: [], usage: { prompt_tokens: 1, completion_tokens: 9, total_tokens: 10 } })}\n\n`);
  response.end("data: [DONE]\n\n");
}
