// Shell: sign-in, navigation, palette, shortcuts, themes, first paint.
import { expect, eventually } from "./browser.mjs";

export async function signIn({ browser, page, key, check }) {
  if (!key) return check("without keys there is no sign-in", () => page.getByLabel("Message", { exact: true }).waitFor());
  await check("a wrong key is refused with the gateway's reason", async () => {
    await page.getByLabel("API key").fill("rk-wrong");
    await page.keyboard.press("Enter");
    await page.getByText("The gateway refused this key").waitFor();
    await browser.checkAccess(page, "sign-in");
  });
  await check("a key signs in and is not part of the URL", async () => {
    await page.getByLabel("API key").fill(key);
    await page.keyboard.press("Enter");
    await page.getByLabel("Message", { exact: true }).waitFor();
    await page.locator("option", { hasText: "scripted" }).first().waitFor({ state: "attached" });
    expect(!page.url().includes(key), page.url());
  });
}

export async function shell({ browser, page, key, check }) {
  await check("the keyboard reaches views, models, palette and help", async () => {
    await page.locator("#main").focus();
    await page.keyboard.press("g");
    await page.keyboard.press("e");
    await page.getByRole("heading", { name: "Engines", level: 1 }).waitFor();
    expect(await page.evaluate(() => document.activeElement.id === "main"), "the view has no focus");
    await page.keyboard.press("/");
    await page.keyboard.type("scrip");
    await page.getByRole("option", { name: /scripted/ }).waitFor();
    await page.keyboard.press("Enter");
    await eventually(() => page.url().includes("playground?model=scripted"), page.url());
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "Command" }).fill("usage");
    await browser.checkAccess(page, "palette");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Usage", level: 1 }).waitFor();
    await page.locator("#main").focus();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await browser.checkAccess(page, "shortcuts");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  });
  await check("each control is reached with Tab and shows the focus", async () => {
    await page.goto(`${browser.url}/#/playground`);
    await page.getByLabel("Message", { exact: true }).waitFor();
    await page.evaluate(() => document.activeElement.blur());
    const seen = new Set();
    for (let step = 0; step < 60; step++) {
      await page.keyboard.press("Tab");
      const [name, visible] = await page.evaluate(() => {
        const { activeElement: element } = document;
        const boxes = [element, element.closest(".switcher, .composer")].filter(Boolean);
        const visible = boxes.some((box) => getComputedStyle(box).outlineStyle !== "none") || element === document.body;
        return [element.getAttribute("aria-label") ?? element.textContent.trim(), visible];
      });
      expect(visible, `no visible focus: ${name}`);
      seen.add(name);
    }
    for (const name of ["Skip to content", "Engines", "Switch the model", "Command palette, Ctrl K", "System prompt", "Parameters", "Message"]) {
      expect(seen.has(name), `Tab does not reach ${name}: ${[...seen]}`);
    }
  });
  await check("the theme is remembered", async () => {
    await page.getByLabel(/^Theme:/).click();
    await page.getByLabel(/^Theme:/).click();
    await page.reload();
    await page.getByLabel("Theme: dark").waitFor();
    expect((await page.evaluate(() => getComputedStyle(document.body).backgroundColor)) === "rgb(15, 18, 22)", "not dark");
    await page.getByLabel(/^Theme:/).click();
  });
  await check("an unknown view leads back", async () => {
    await page.goto(`${browser.url}/#/nothing`);
    await page.getByText("There is no view").waitFor();
    await browser.checkAccess(page, "unknown-view");
  });
  await check("the rail becomes a bottom bar, nothing is wider than the window, and motion is reduced", async () => {
    const phone = await browser.open({ key, viewport: { width: 390, height: 844 } });
    for (const view of ["playground", "jobs", "rl", "models", "evals", "queue", "responses", "engines", "keys", "usage"]) {
      await phone.goto(`${browser.url}/#/${view}`);
      await phone.locator("main h1").first().waitFor({ state: "attached" });
      const { top, width, moving } = await phone.evaluate(() => ({
        top: document.querySelector(".rail").getBoundingClientRect().top,
        width: document.documentElement.scrollWidth,
        moving: getComputedStyle(document.querySelector("button")).transitionDuration,
      }));
      expect(top > 700 && width <= 390 && moving === "0s", `${view}: ${top} ${width} ${moving}`);
      await browser.checkAccess(phone, `${view}-390`);
    }
    await phone.getByRole("button", { name: "More" }).click();
    await phone.getByRole("combobox", { name: "Command" }).fill("evals");
    await phone.keyboard.press("Enter");
    await phone.getByRole("heading", { name: "Evals", level: 1 }).waitFor();
    await phone.context().close();
  });
}

// First paint and transferred bytes of the playground without a cache.
export async function firstPaint({ browser, key, check }) {
  await check("first paint is measured", async () => {
    const page = await browser.open({ key });
    await page.getByLabel("Message", { exact: true }).waitFor();
    const { paint, bytes } = await page.evaluate(() => ({
      paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
      bytes: performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
        .filter((each) => !each.name.includes("/v1/")).reduce((sum, each) => sum + each.transferSize, 0),
    }));
    console.log(`first contentful paint after ${paint.toFixed(0)} ms, ${bytes} bytes transferred`);
    expect(bytes < 150_000, "the transfer is too large");
    await page.context().close();
  });
}
