// llama.cpp's rates on the same file and threads as bench/model_bench: prompt tokens a second of 1,024 tokens, generated
// tokens a second of eight sequences at once. JSON lines. Run where node-llama-cpp is installed (tools/deps/npm.txt):
//   node tools/bench_llama_cpp.mjs MODEL.gguf THREADS [ROUNDS]
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import path from "node:path";

const require = createRequire(path.join(process.cwd(), "x.js"));
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const [file, threadsText, roundsText] = process.argv.slice(2);
const threads = Number(threadsText), rounds = Number(roundsText ?? 3);
const prompt = 1024, chunk = 512, sequences = 8, contextTokens = 128, steps = 32;

const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: threads});
const model = await llama.loadModel({modelPath: file});
const words = Array.from({length: prompt}, (_, i) => (i * 7919 + 13) % 40000);
const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
const seconds = async (work) => {
  const begin = process.hrtime.bigint();
  await work();
  return Number(process.hrtime.bigint() - begin) / 1e9;
};

async function prefill() {
  const context = await model.createContext({contextSize: prompt + 32, batchSize: chunk, sequences: 1, threads});
  const sequence = context.getSequence();
  const took = await seconds(() => sequence.evaluateWithoutGeneratingNewTokens(words));
  await context.dispose();
  return took;
}

async function decode() {
  const context = await model.createContext(
    {contextSize: contextTokens + steps + 8, batchSize: chunk, sequences, threads});
  const all = Array.from({length: sequences}, () => context.getSequence());
  for (const [i, sequence] of all.entries()) {
    await sequence.evaluateWithoutGeneratingNewTokens(words.slice(i * 31, i * 31 + contextTokens));
  }
  const generate = async (sequence, last) => {
    let count = 0;
    for await (const _ of sequence.evaluate([last], {temperature: 0, yieldEogToken: true})) {
      if (++count === steps) break;
    }
  };
  const took = await seconds(() => Promise.all(all.map((sequence, i) => generate(sequence, words[i]))));
  await context.dispose();
  return took;
}

await prefill();
const times = {prefill: [], decode: []};
for (let i = 0; i < rounds; ++i) {
  times.prefill.push(await prefill());
  times.decode.push(await decode());
}
const say = (name, value) => console.log(JSON.stringify({name, value, unit: "tokens/s"}));
say("prefill_1k", prompt / median(times.prefill));
say("decode_8", sequences * steps / median(times.decode));
await llama.dispose();
