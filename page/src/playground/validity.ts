// Whether a text is JSON that fits a schema: the keywords that structured output and tools commonly use.

type Schema = Record<string, any>;

export interface Verdict {
  value?: unknown;
  problem: string;
}

export function judge(text: string, schema?: unknown): Verdict {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { problem: `not valid JSON: ${(error as Error).message}` };
  }
  const problem = schema && typeof schema === "object" ? mismatch(value, schema as Schema, "") : "";
  return { value, problem };
}

export function parsed(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// The first difference from the schema, or "".
function mismatch(value: unknown, schema: Schema, path: string): string {
  const at = path || "the value";
  const types = schema.type === undefined ? [] : [schema.type].flat();
  if (types.length && !types.some((type) => isOf(value, type))) return `${at} is not of type ${types.join(" or ")}`;
  if (schema.enum && !schema.enum.some((each: unknown) => same(each, value))) return `${at} is not one of the allowed values`;
  if ("const" in schema && !same(schema.const, value)) return `${at} is not ${JSON.stringify(schema.const)}`;
  const options: Schema[] | undefined = schema.anyOf ?? schema.oneOf;
  if (options && options.every((each) => mismatch(value, each, path))) return `${at} fits no alternative of the schema`;
  if (typeof value === "string") return ofString(value, schema, at);
  if (typeof value === "number") return ofNumber(value, schema, at);
  if (Array.isArray(value)) return ofArray(value, schema, path, at);
  if (value && typeof value === "object") return ofObject(value as Schema, schema, path);
  return "";
}

function ofString(value: string, schema: Schema, at: string): string {
  if (value.length < (schema.minLength ?? 0)) return `${at} is too short`;
  if (value.length > (schema.maxLength ?? Infinity)) return `${at} is too long`;
  if (schema.pattern && !new RegExp(schema.pattern, "u").test(value)) return `${at} does not match ${schema.pattern}`;
  return "";
}

function ofNumber(value: number, schema: Schema, at: string): string {
  if (value < (schema.minimum ?? -Infinity)) return `${at} is below ${schema.minimum}`;
  if (value > (schema.maximum ?? Infinity)) return `${at} is above ${schema.maximum}`;
  return "";
}

function ofArray(value: unknown[], schema: Schema, path: string, at: string): string {
  if (value.length < (schema.minItems ?? 0)) return `${at} has too few items`;
  if (value.length > (schema.maxItems ?? Infinity)) return `${at} has too many items`;
  if (!schema.items) return "";
  return value.map((each, place) => mismatch(each, schema.items, `${path}[${place}]`)).find(Boolean) ?? "";
}

function ofObject(value: Schema, schema: Schema, path: string): string {
  const known: Schema = schema.properties ?? {};
  const missing = (schema.required ?? []).find((name: string) => !(name in value));
  if (missing) return `${join(path, missing)} is missing`;
  for (const [name, each] of Object.entries(value)) {
    if (known[name]) {
      const found = mismatch(each, known[name], join(path, name));
      if (found) return found;
    } else if (schema.additionalProperties === false) return `${join(path, name)} is not in the schema`;
  }
  return "";
}

function join(path: string, name: string): string {
  return path ? `${path}.${name}` : name;
}

function isOf(value: unknown, type: string): boolean {
  if (type === "integer") return Number.isInteger(value);
  if (type === "array") return Array.isArray(value);
  if (type === "null") return value === null;
  if (type === "object") return value !== null && typeof value === "object" && !Array.isArray(value);
  return typeof value === type;
}

function same(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}
