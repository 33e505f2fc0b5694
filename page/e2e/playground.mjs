// Playground: messages, parameters, tokens, tools, structured output, comparison, export, failures.
import { eventually, expect } from "./browser.mjs";
import { HTML, LONG, MIXED } from "./scripted.mjs";

export async function playground({ browser, page, check }) {
  const message = page.getByLabel("Message", { exact: true });
  const answers = page.locator(".turn.assistant");
  const show = async (query) => {
    await page.goto(`${browser.url}/#/playground?${query}`);
    await page.reload();
    await message.waitFor();
  };
  const say = async (text) => {
    const before = await answers.count();
    await message.fill(text);
    await message.press("Enter");
    await answers.nth(before).locator(".chip", { hasNotText: "generating" }).first().waitFor();
    return answers.nth(before);
  };

  await check("a model answers, with figures", async () => {
    await show("model=toy&max_tokens=20");
    await browser.checkAccess(page, "playground-empty");
    await (await say("<script>alert(1)</script> hi")).getByText("tok/s").waitFor();
    expect(await page.locator(".turn.user script").count() === 0, "a message became markup");
  });
  await check("HTML of a response is shown as text", async () => {
    await show("model=scripted");
    const answer = await say("html");
    expect((await answer.innerText()).includes(HTML), await answer.innerText());
    expect(!(await page.evaluate(() => window.broken)), "a script of the response ran");
    expect(await answer.locator("script, img, b").count() === 0, "the response became markup");
  });
  await check("right-to-left text and emoji keep their order", async () => {
    const text = (await say("mixed")).getByText(MIXED);
    expect(await text.evaluate((each) => getComputedStyle(each.closest("[dir]")).direction) === "rtl", "not right to left");
  });
  await check("Markdown is rendered, links to scripts are not", async () => {
    const answer = await say("markdown");
    for (const element of ["li", "table", "pre", "a[href='https://example.com']"]) await answer.locator(element).first().waitFor();
    expect(await answer.locator("a[href^=javascript]").count() === 0, "a link runs a script");
    await browser.checkAccess(page, "playground-markdown");
  });
  await check("reasoning is folded", async () => {
    const answer = await say("think");
    expect(!(await answer.getByText("First I think").isVisible()), "reasoning is open");
    await answer.getByText("Reasoning,").click();
    await answer.getByText("First I think").waitFor();
  });
  await check("50 kB are drawn fast and keep the page responsive", async () => {
    await show("model=scripted");
    const begun = Date.now();
    const answer = await say("long");
    const ms = Date.now() - begun;
    const frame = await page.evaluate(async () => {
      const started = performance.now();
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      return performance.now() - started;
    });
    console.log(`${LONG.length} characters in ${ms} ms, then two frames in ${frame.toFixed(0)} ms`);
    expect((await answer.locator("p").count()) >= 500, "paragraphs are missing");
  });
  await check("a response is stopped", async () => {
    await message.fill("slow");
    await message.press("Enter");
    await answers.last().getByText("0 1 2").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await answers.last().getByText("stopped").waitFor();
  });
  await check("an engine that is lost while streaming is reported, and the response generated again", async () => {
    const answer = await say("break");
    await answer.getByRole("alert").waitFor();
    await browser.checkAccess(page, "playground-broken-stream");
    await answer.getByLabel("Regenerate").click();
    await eventually(async () => (await answers.last().getByRole("alert").count()) === 1, "no second failure");
  });
  await check("a message is edited and sent again", async () => {
    await show("model=scripted");
    await say("first");
    await page.getByLabel("Edit and send again").click();
    await page.getByLabel("Edited message").fill("second");
    await page.getByRole("button", { name: "Send again" }).click();
    await answers.last().getByText("You wrote: second").waitFor();
    expect(await answers.count() === 1, "the earlier response is still shown");
  });
  await check("a corrected response is part of the training record", async () => {
    await page.getByLabel("Correct", { exact: true }).click();
    await page.getByLabel("Edited message").fill("corrected");
    await page.getByRole("button", { name: "Save correction" }).click();
    await page.getByRole("button", { name: "Export" }).click();
    await page.getByRole("radio", { name: "JSONL" }).click();
    const record = JSON.parse(await page.locator(".export").innerText());
    expect(record.messages.at(-1).content === "corrected", JSON.stringify(record));
    await page.getByRole("radio", { name: "Python" }).click();
    await page.getByText("from openai import OpenAI").waitFor();
    await page.getByRole("radio", { name: "curl" }).click();
    await page.getByText("curl http").waitFor();
    await browser.checkAccess(page, "export");
    await page.getByRole("button", { name: "Copy", exact: true }).click();
    expect((await page.evaluate(() => navigator.clipboard.readText())).startsWith("curl "), "nothing was copied");
    await page.keyboard.press("Escape");
  });
  await check("parameters are part of the link and of the request", async () => {
    await show("model=toy&panel=1");
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Max tokens").fill("9");
    await page.getByLabel("Seed").fill("3");
    await page.getByLabel("System prompt").fill("Be brief.");
    await page.getByLabel("Log-probabilities").check();
    await browser.checkAccess(page, "playground-parameters");
    await eventually(() => page.url().includes("system=Be+brief."), page.url());
    await page.reload();
    const sent = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
    await say("hello");
    const body = (await sent).postDataJSON();
    const expected = { temperature: 0, max_tokens: 9, seed: 3, logprobs: true };
    for (const [name, value] of Object.entries(expected)) expect(body[name] === value, `${name}: ${body[name]}`);
    expect(body.messages[0].content === "Be brief.", JSON.stringify(body.messages));
  });
  await check("log-probabilities and alternatives are shown on hover and by keyboard", async () => {
    await page.locator(".token").nth(1).hover();
    const shown = page.locator(".alternatives");
    await shown.waitFor();
    expect(await shown.locator("> div").count() >= 3, "no alternatives");
    await browser.checkAccess(page, "playground-tokens");
    await page.mouse.move(0, 0);
    await page.locator(".tokens .text").focus();
    await page.keyboard.press("ArrowRight");
    await page.locator(".token[data-place='1'].active").waitFor();
    expect((await shown.innerText()).includes("%"), await shown.innerText());
  });
  await check("a tool call is a block with its validity, and its result goes back", async () => {
    await show("model=scripted&panel=1");
    await page.getByRole("button", { name: "Insert an example" }).last().click();
    const answer = await say("tool");
    await answer.getByText("Tool call: get_weather").waitFor();
    await answer.getByText("valid", { exact: true }).waitFor();
    await answer.getByLabel("Result of get_weather").fill("sunny");
    await browser.checkAccess(page, "playground-tool-call");
    await answer.getByRole("button", { name: "Return result" }).click();
    await answers.last().getByText("The tool returned sunny.").waitFor();
  });
  await check("structured output shows whether it fits the schema", async () => {
    await show("model=scripted&panel=1&format=json_schema");
    await page.getByRole("button", { name: "Insert an example" }).first().click();
    await (await say("json")).getByText("valid", { exact: true }).waitFor();
    const wrong = await say("wrong");
    await wrong.getByText("age is not of type integer").waitFor();
    await browser.checkAccess(page, "playground-structured");
  });
  await check("three models are compared, and the link keeps them", async () => {
    await show("model=toy&max_tokens=9");
    await page.getByRole("button", { name: "Compare" }).click();
    await page.getByRole("button", { name: "Compare" }).click();
    await page.locator(".column").nth(2).waitFor();
    await page.getByLabel("Model 3").selectOption("toy");
    await message.fill("again");
    await message.press("Enter");
    for (const place of [0, 1, 2]) await page.locator(".column").nth(place).getByText("tok/s").waitFor();
    await browser.checkAccess(page, "playground-compare");
    await page.reload();
    await page.locator(".column").nth(2).waitFor();
    await page.getByLabel(/^Remove/).last().click();
    await eventually(async () => (await page.locator(".column").count()) === 2, "the column is still there");
    expect(new URL(page.url().replace("#/", "")).searchParams.getAll("model").join() === "toy,scripted", page.url());
  });
  await check("a request that the engine refuses is explained", async () => {
    await show("model=toy&top_p=5");
    await (await say("hi")).getByRole("alert").getByText("top_p").waitFor();
  });
}
