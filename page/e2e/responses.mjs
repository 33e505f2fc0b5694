// Stored responses: the empty list, one with its items, continued in the playground, deleted.
import { expect } from "./browser.mjs";

export async function responses({ browser, page, check, ask }) {
  await check("without stored responses, the view says how they arise", async () => {
    await page.route("**/v1/responses?*", (route) => route.fulfill({ json: { object: "list", data: [], has_more: false } }));
    await page.goto(`${browser.url}/#/responses`);
    await page.getByText("No stored responses").waitFor();
    await browser.checkAccess(page, "responses-empty");
    await page.unroute("**/v1/responses?*");
  });
  await check("a response is listed, opened with its items, and leads to the one before", async () => {
    const first = await ask("/v1/responses", { model: "toy", input: "My name is Ada.", instructions: "Be brief.", max_output_tokens: 6 });
    await ask("/v1/responses", { model: "toy", input: "What is my name?", previous_response_id: first.id, max_output_tokens: 6 });
    await page.goto(`${browser.url}/#/queue`);
    await page.goto(`${browser.url}/#/responses`);
    await page.getByRole("link", { name: "What is my name?" }).waitFor();
    await browser.checkAccess(page, "responses");
    await page.getByRole("link", { name: "What is my name?" }).click();
    await page.getByRole("article", { name: "user" }).getByText("What is my name?").waitFor();
    await browser.checkAccess(page, "response");
  });
  await check("a response is continued in the playground with its whole conversation", async () => {
    await page.getByRole("button", { name: "Continue in the playground" }).click();
    await page.locator(".turn.user").getByText("My name is Ada.").waitFor();
    expect((await page.locator(".turn").count()) === 4, "the conversation is not whole");
    const sent = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
    await page.getByLabel("Message", { exact: true }).fill("Again?");
    await page.keyboard.press("Enter");
    const { messages } = (await sent).postDataJSON();
    expect(messages.filter((each) => each.role === "user").length === 3, JSON.stringify(messages));
    await page.locator(".turn.assistant").last().getByText("tok/s").waitFor();
  });
  await check("a response is deleted after a confirmation", async () => {
    await page.goto(`${browser.url}/#/responses?response=`);
    await page.getByRole("link", { name: "My name is Ada." }).click();
    await page.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByText("can no longer be continued").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Delete the response" }).click();
    await page.getByRole("link", { name: "What is my name?" }).waitFor();
    expect((await page.getByRole("link", { name: "My name is Ada." }).count()) === 0, "it is still listed");
  });
}
