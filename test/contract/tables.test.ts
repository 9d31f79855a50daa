import { describe } from "vitest";
import { contract } from "./contract";
import { tablesEngine } from "./tables";

describe("tables", () => contract(tablesEngine()));
