// Writes tests/golden/tokenizer_smollm2.tsv: what llama.cpp makes of awkward texts with SmolLM2's
// vocabulary. Run where node-llama-cpp is installed (tools/deps/npm.txt), Node >= 20:
//   node tools/golden/tokenizer_smollm2.mjs MODEL.gguf > tests/golden/tokenizer_smollm2.tsv
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import path from "node:path";

const require = createRequire(path.join(process.cwd(), "x.js"));
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")));

const plain = [
  "", " ", "  ", "a", " a", "Hello, world!", "hello  world", "Hello   world  ", "\n", "\n\n", "\n\n\n a",
  " \n \n ", "\t", "\t\tx", "\r\n\r\n", "a\r\nb", "a\n b", "trailing \n", "x  \n  y", "\u00a0a\u00a0", "\u3000\u3000x",
  "\u180e x \u180e", "\u0085a", "\u2028b", "a\u200bb", "\ufeffBOM",
  "I'm we'll they've it's you're he'd don't I'M WE'LL 's 't'S ''re", "can't've", "l'homme d'abord", "'tis 'twas",
  "1234567890", "3.14159", "a1b22c333", " 1 12 123", "1,000,000.00", "２０２６年", "٣٤٥", "Ⅷ ½ ①", "x²y³", "1st 2nd",
  "UPPER lower MiXeD CamelCase snake_case kebab-case", "ALLCAPS123lower",
  "def f(x):\n    return x**2  # square\n", "for (int i=0;i<n;++i) { a[i] += b[i]; }", "<div class=\"x\">&amp;</div>",
  "{\"key\": [1, 2.5e-3, null], \"s\": \"\\u00e9\"}", "#include <vector>\nint main(){return 0;}\n", "a==b!=c<=d>=e&&f||g",
  "SELECT * FROM t WHERE a='b';", "https://example.org/a?b=c&d=%20#e", "user@example.com", "C:\\path\\to\\file",
  "......", "!!!???", "---", "___", "=====================", "(((a)))", " .", " ...a", "$100 €200 £300 ¥400",
  "naïve café résumé Übergröße", "cafe\u0301 e\u0301\u0302 a\u030a", "\u0301\u0302", "Z\u0351\u036b\u0343\u036a\u0302A\u0317\u030fL\u0320G\u0322O\u034f",
  "日本語のテキスト。", "中文字符，标点。", "한국어 텍스트", "한글", "Привет, мир!", "Ελληνικά κείμενο", "שלום עולם", "مرحبا بالعالم",
  "नमस्ते दुनिया", "ไทย ภาษา", "ខ្មែរ", "தமிழ்", "ქართული", "አማርኛ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𠜎𠜱𠝹", "ﬁ ﬂ ﬃ", "Ǆ ǅ ǆ", "ſ Kelvin",
  "😀", "😀😃😄", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "a😀b", " 😀", "1️⃣", "🤷‍♀️ ok",
  "\u0000", "a\u0000b", "\u0001\u0002\u0003", "\u0004\u0006", "\u001b[31mred\u001b[0m", "\u007f", "a\u0004b", "\u0013x\u0016",
  "\u{10ffff}", "\u{e000}", "\ufffd", "\u{1f9ff}\u{fe0f}", "\u061c\u202eRTL\u202c",
  "<|im_start|>", "x<|im_end|>y", "<|endoftext|>", "<|im_start", "<repo_name>", "<reponame>", "<file_sep>a",
  "supercalifragilisticexpialidocious antidisestablishmentarianism", "pneumonoultramicroscopicsilicovolcanoconiosis",
  "a".repeat(300), "ab".repeat(200), "abcdefghijklmnopqrstuvwxyz".repeat(20), " ".repeat(100), " ".repeat(99) + "x",
  "\n".repeat(50), "\t".repeat(33) + "y", "é".repeat(100), "日".repeat(100), "😀".repeat(40), "=".repeat(257), "0".repeat(70),
  "The quick brown fox jumps over the lazy dog.", "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
  "What is the capital of France?", "  leading", "a  b   c    d     e", "a \t b\t \tc", "end with spaces     ",
  "\n  \n\t\n", "x\n\n\n\ny", "1\n2\n3", "1 \n 2", "Dr. Smith's 2nd-best $5.99 deal (50% off!)\n\n- item 1\n- item 2\n",
  "mixed日本語and русский текст 123", "e=mc² ∑∫√∞ ≠ ≈ ← ↑ → ↓", "«guillemets» “quotes” ‘single’ – — …", "\u00ad soft\u00adhyphen",
];
const special = [
  "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
  "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n",
  "<|im_start|><|im_start|>", "a<|endoftext|>b", " <|im_end|> ", "<|im_start|", "<|<|im_end|>|>", "<repo_name>x<reponame>y<file_sep>",
  "<jupyter_start><jupyter_text>1<jupyter_code>x=1<jupyter_output>2", "<empty_output>", "<IM_START>", "日本<|im_end|>語", "1<|im_end|>2", "",
];

const escape = (text) => [...Buffer.from(text, "utf8")].map((b) =>
  b === 0x5c ? "\\\\" : b >= 0x20 && b < 0x7f ? String.fromCharCode(b) : "\\x" + b.toString(16).padStart(2, "0")).join("");

const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: process.argv[2], vocabOnly: true});
console.log("# plain or special, tokens, text (bytes outside ASCII and controls as \\xNN). llama.cpp through node-llama-cpp");
console.log("# 3.21.1, by tools/golden/tokenizer_smollm2.mjs.");
for (const [kind, texts] of [["plain", plain], ["special", special]]) {
  for (const text of texts) {
    console.log([kind, model.tokenize(text, kind === "special").join(" "), escape(text)].join("\t"));
  }
}
await llama.dispose();
