// Writes tests/golden/forward_smollm2.tsv: what llama.cpp computes with SmolLM2's weights in bfloat16. MODEL is the copy
// that `baton-make-gguf bf16` writes. Run where node-llama-cpp is installed (tools/deps/npm.txt), Node >= 20:
//   node tools/golden/forward_smollm2.mjs MODEL.bf16.gguf > tests/golden/forward_smollm2.tsv
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import path from "node:path";

const require = createRequire(path.join(process.cwd(), "x.js"));
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")));

const chat = (...turns) =>
  turns.map(([role, text]) => `<|im_start|>${role}\n${text}<|im_end|>\n`).join("") + "<|im_start|>assistant\n";
const story =
  "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, " +
  "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of " +
  "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing " +
  "before us, we were all going direct to Heaven, we were all going direct the other way. ";
const prompts = {
  capital: chat(["user", "What is the capital of France?"]),
  one: "The",
  code: "def fibonacci(n):\n    if n <= 1:\n        return n\n    return",
  turns: chat(["system", "You answer briefly."], ["user", "Name a colour."], ["assistant", "Blue."], ["user", "Another?"]),
  sentence: "Water boils at one hundred degrees Celsius at sea level, but on a high mountain",
  numbers: "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
  long: story.repeat(8) + "In short, the period was so far like the present period,",
};
const kept = 8, greedyTokens = 24;

// One thread: two that wait for one another are many times slower when the machine is busy.
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 1});
const model = await llama.loadModel({modelPath: process.argv[2]});
const context = await model.createContext({contextSize: 2048, batchSize: 512, sequences: 1, threads: 1, flashAttention: false});
const sequence = context.getSequence();
const next = {generateNext: {probabilities: true}};

const describe = (item) => {
  const likeliest = [...item.next.probabilities].sort((a, b) => b[1] - a[1]).slice(0, kept);
  return likeliest.map(([token, p]) => `${token}:${Math.log(p).toFixed(5)}`).join(" ");
};
const isProbed = (i, count) => i === count - 1 || i % Math.max(1, Math.floor(count / 12)) === 0;

console.log("# prompt NAME TOKENS; then after POSITION, its likeliest next tokens with the logarithm of their");
console.log("# probability; then greedy tokens. By tools/golden/forward_smollm2.mjs from llama.cpp 0.4.0, bfloat16.");
for (const [name, text] of Object.entries(prompts)) {
  const tokens = model.tokenize(text, true);
  await sequence.clearHistory();
  console.log(["prompt", name, tokens.join(" ")].join("\t"));
  const input = tokens.map((token, i) => isProbed(i, tokens.length) ? [token, next] : token);
  let answers = await sequence.controlledEvaluate(input);
  for (const [i, item] of answers.entries()) {
    if (item !== undefined) console.log(["after", i, describe(item)].join("\t"));
  }
  const greedy = [];
  let last = answers.at(-1);
  while (greedy.length < greedyTokens) {
    const [first, second] = [...last.next.probabilities].sort((a, b) => b[1] - a[1]);
    // How far the choice is from being another one: the test asks for equal tokens only where this is clear.
    greedy.push(`${first[0]}:${Math.log(first[1] / second[1]).toFixed(4)}`);
    last = (await sequence.controlledEvaluate([[first[0], next]]))[0];
  }
  console.log(["greedy", greedyTokens, greedy.join(" ")].join("\t"));
}
await llama.dispose();
