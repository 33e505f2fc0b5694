import { render } from "preact";
import { restart } from "./live";
import { App } from "./shell";
import "./style.css";

restart();
render(<App />, document.getElementById("app")!);
