import { render } from "preact";
import { App } from "./shell/app";
import { restart } from "./state/live";
import "./shell/style.css";

const root = document.getElementById("app")!;
root.replaceChildren();
restart();
render(<App />, root);
