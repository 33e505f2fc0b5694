// Run by Node with the URL of a server and its key, beside the AI SDK's `node_modules`: prints the results of text,
// streams, tools, objects and embeddings, and the tokens that the SDK counted.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [url, apiKey] = process.argv.slice(2);
const rondo = createOpenAICompatible({
  name: "rondo",
  baseURL: `${url}/v1`,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const common = { model: rondo("tiny"), temperature: 0, maxRetries: 0, abortSignal: AbortSignal.timeout(120_000) };
const short = { ...common, maxOutputTokens: 20, system: "Be short.", prompt: "How is the weather in Paris?" };
const roomy = { ...short, maxOutputTokens: 200 };
const city = z.enum(["Paris", "Rome"]);
const schema = z.object({ city, degrees: z.number().int().min(0).max(9) });
const usage = [0, 0];
const counted = (used) => {
  usage[0] += used.inputTokens;
  usage[1] += used.outputTokens;
};

const found = {};
const whole = await generateText(short);
counted(whole.usage);
found.chat = whole.text;
const stream = streamText({ ...short, onError: ({ error }) => { throw error; } });
found.stream = "";
for await (const part of stream.textStream) found.stream += part;
counted(await stream.usage);

// The first step must call the function, the second may, and is the last.
found.calls = [];
const tools = {
  get_weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city }),
    execute: async (input) => {
      found.calls.push(["get_weather", input]);
      return `${input.city}: sunny`;
    },
  }),
};
const steps = {
  ...roomy,
  tools,
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({
    toolChoice: stepNumber === 0 ? { type: "tool", toolName: "get_weather" } : "none",
  }),
};
const agent = await generateText(steps);
counted(agent.totalUsage);
found.steps = agent.steps.map((step) => step.finishReason);
const streamed = streamText({ ...steps, onError: ({ error }) => { throw error; } });
await streamed.consumeStream();
counted(await streamed.totalUsage);

const object = await generateObject({ ...roomy, schema });
counted(object.usage);
const partial = streamObject({ ...roomy, schema, onError: ({ error }) => { throw error; } });
for await (const _ of partial.partialObjectStream);
counted(await partial.usage);
found.structured = [object.object, await partial.object];

const { embeddings } = await embedMany({
  model: rondo.embeddingModel("tiny"),
  values: ["sunny", "rainy"],
  maxRetries: 0,
});
found.vectors = embeddings;
found.usage = usage;
console.log(JSON.stringify(found));
