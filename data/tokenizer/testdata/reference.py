"""Makes the tables of package tokenizer and the ids its tests compare, with the
reference library: pip install tokenizers==0.23.3

  reference.py tables              writes ../classes.bin and ../nfc.txt
  reference.py fixtures [NAME...]  writes strings.gz, NAME.json.gz and NAME.ref here, of all families or of those named
  reference.py real FOLDER         of every FOLDER/NAME/tokenizer.json: writes FOLDER/NAME/reference.bin,
                                   of 24,000 strings (FOLDER/strings.bin) and FOLDER/text.txt, if that is there
  reference.py kinds FOLDER        makes 63 kinds of tokenizers in a new FOLDER, and what real writes
  reference.py drawn FOLDER SEED COUNT
                                   changes the fixtures at random; writes FOLDER/N/tokenizer.json, and what the
                                   library makes of 300 strings (FOLDER/strings.bin), or says: reference.bin or refused

Go compares: go test ./data/tokenizer, with ZEROTH_TOKENIZERS=FOLDER the real ones, with ZEROTH_DRAWN_TOKENIZERS=FOLDER those drawn.
"""
import gzip, json, os, random, struct, sys, unicodedata, zlib
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
RUNES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def members(pattern):
    """The characters that a regular expression matches."""
    out, split = set(), pre_tokenizers.Split(Regex(pattern), "removed")
    for i in range(0, len(RUNES), 4096):
        part = RUNES[i:i + 4096]
        rest = {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, part))) for c in piece}
        out.update(c for c in part if c not in rest)
    return out


def punctuation():
    """The characters that Punctuation splits at."""
    split = pre_tokenizers.Punctuation("removed")
    for i in range(0, len(RUNES), 4096):
        part = RUNES[i:i + 4096]
        rest = {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, part))) for c in piece}
        yield from (c for c in part if c not in rest)


def words():
    """The characters beside which a token with single_word is not found."""
    tok = Tokenizer(models.BPE(vocab={"a": 0, "u": 1}, merges=[], unk_token="u"))
    tok.add_tokens([AddedToken("@@", single_word=True, normalized=False)])
    for i in range(0, len(RUNES), 8192):
        part = RUNES[i:i + 8192]
        for c, e in zip(part, tok.encode_batch([chr(c) + "@@" for c in part])):
            if 2 not in e.ids:
                yield c


def composition():
    """Decompositions, classes of marks and pairs as the reference has them."""
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    whole, marks, pairs, moves = {}, {}, {}, set()
    for c in RUNES:
        s = chr(c)
        if 0xAC00 <= c < 0xD7A4:  # Hangul is computed
            continue
        if nfd(s) != s:
            whole[c] = nfd(s)
            two = unicodedata.decomposition(s).split()
            if len(two) == 2 and nfc("".join(chr(int(x, 16)) for x in two)) == s:
                pairs[tuple(int(x, 16) for x in two)] = c
        if unicodedata.combining(s) and (c == 0x345 or nfd("\u0345" + s) != "\u0345" + s):
            marks[c] = unicodedata.combining(s)
        if nfc(s) != s:
            moves.add(c)
    moves |= set(marks) | {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    return whole, marks, pairs, moves


def tables():
    whole, marks, pairs, moves = composition()
    with open(f"{HERE}/../nfc.txt", "w") as f:
        for c, s in sorted(whole.items()):
            f.write(f"= {c:x} {' '.join(f'{ord(x):x}' for x in s)}\n")
        for c, k in sorted(marks.items()):
            f.write(f"# {c:x} {k:x}\n")
        for (a, b), c in sorted(pairs.items()):
            f.write(f"+ {a:x} {b:x} {c:x}\n")
        for sign, old, new in ("~", normalizers.NFD(), normalizers.NFKD()), (">", None, normalizers.Lowercase()):
            for c in RUNES:
                s = new.normalize_str(chr(c))
                if s != (old.normalize_str(chr(c)) if old else chr(c)) and not 0xAC00 <= c < 0xD7A4:
                    f.write(f"{sign} {c:x} {' '.join(f'{ord(x):x}' for x in s)}\n")
        strip, begin = normalizers.StripAccents(), None
        for c in [*RUNES, 0x110000]:
            gone = c < 0x110000 and strip.normalize_str(chr(c)) == ""
            if gone and begin is None:
                begin = c
            elif not gone and begin is not None:
                f.write(f"! {begin:x} {c:x}\n")
                begin = None
    kinds = [0] * 0x110000
    for bits, cs in [(1, members(r"\p{L}")), (2, members(r"\p{N}")), (3, members(r"\s")),
                     (4, members(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]")), (8, members(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]")),
                     (16, words()), (32, moves), (64, members(r"[\p{P}\p{S}]")), (128, punctuation())]:
        for c in cs:
            kinds[c] |= bits
    out, i = bytearray(), 0
    while i < len(kinds):
        end = i
        while end < len(kinds) and kinds[end] == kinds[i]:
            end += 1
        out.append(kinds[i])
        n = end - i
        while n >= 128:
            out.append(n & 127 | 128)
            n >>= 7
        out.append(n)
        i = end
    open(f"{HERE}/../classes.bin", "wb").write(out)
    print(len(out), "bytes of classes;", len(whole), "decompositions,", len(marks), "marks,", len(pairs), "pairs")


SPACES = [' ', '  ', '\n', '\r', '\r\n', '\t', '\x0b', '\x0c', '\x1c', '\x1f', '\x85', '\xa0', '\u1680', '\u180e', '\u2000', '\u2009',
          '\u200a', '\u200b', '\u2028', '\u2029', '\u202f', '\u205f', '\u3000', '\ufeff', '\u200d']
SHORT = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Re", "'\u017f", "'D", "’s", "'ſt", "'l", "'v", "'r", "don't", "IT'S", "'TIS", "''s",
         "'\u212a"]
WORDS = ["hello", "World", "the", "naïve", "Übergröße", "straße", "Привет", "мир", "שלום", "مرحبا", "नमस्ते", "สวัสดี", "你好世界", "こんにちは", "한국어",
         "\u1100\u1161\u11a8", "ﬁ", "ǅ", "ǈa", "aǅb", "ſ", "İ", "ı", "ẞ", "A\u030a", "\u212b", "e\u0301", "\u1e9b\u0323", "q\u0323\u0307", "q\u0307\u0323",
         "\u0958", "\u0f43", "\u2126", "a\u0301\u0301\u0302", "𝒳𝓎", "𐐷𐑌", "\U00010041\u0301", "ȺȾ", "CamelCase", "snake_case", "XMLHttp", "IOError", "ᏣᎳᎩ", "ꮳ",
         "ʰʷ", "ªº", "\u0345", "zażółć", "\U00016d40", "\u1c89\u1c8a"]
NUMBERS = ["0", "12", "123", "1234", "1234567", "٣٤٥", "½", "Ⅷ", "²³", "𝟘𝟙𝟚", "①", "一二", "3.14", "1,000,000", "0x1F", "௧௨"]
SIGNS = ["!", "?!", "...", "—", "“”", "_", "▁", "▁▁", " ▁", "<", "<s>", "</s>", "<unk>", "<pad>", "<0x0A>", "<0xFF>", "<|endoftext|>", "<|im_start|>", "<|im_end|>",
         "<|eot_id|>", "<|begin_of_text|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<tool_call>", "</think>", "<think>",
         "<|endoftext", "<unused0>", "<table>", "<mask>", "<h1>", "[L]", "[R]", "[W]", "[N]é", "\n\n\n", "\t\t", "//", "/*", "/\n", "?/\r\n", "\\n", "\x00", "\x01",
         "\x7f", "\ufffd", "\uffff", "\ue000", "\U0010ffff", "\U000e0001", "€", "$", "+", "^", "`", "|", "~", "№", "©", "°", "´"]
FACES = ["😀", "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "👍🏽", "🇩🇪", "☺️", "❤", "🫠", "\U0001fae8", "\u20e3", "1️⃣"]


def nasty(count):
    """Strings in which every rule of a tokenizer is met, the same every time."""
    r = random.Random(16)

    def any_rune():
        while True:
            x = r.random()
            c = r.randrange(*((0x20, 0x250) if x < .3 else (0x250, 0x3000) if x < .6 else (0x3000, 0x10000) if x < .8 else (0x10000, 0x32000) if x < .97 else (0, 0x110000)))
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    def piece():
        x = r.random()
        if x < .22:
            return r.choice(SPACES) * r.choice([1, 1, 1, 2, 3, 7])
        if x < .32:
            return r.choice(SHORT)
        if x < .55:
            return r.choice(WORDS)
        if x < .65:
            return r.choice(NUMBERS)
        if x < .78:
            return r.choice(SIGNS)
        if x < .83:
            return r.choice(FACES)
        if x < .93:
            return any_rune() * r.choice([1, 1, 2, 5])
        return ' ' + r.choice(WORDS)

    out = ["", " ", "  ", "\n", "a\n\nb", "a \n b", "\r\n\r\n", "   leading", "trailing   ", "\t\ttab", "\u0301" * 300, "a" + "\u0301" * 200 + "\u0323", "<s>" * 50, "▁" * 500,
           " " * 300, "\n" * 200, "1" * 300, "ab" * 300, "é" * 200, "你" * 150, "!" * 200]
    for c in [*range(0x20), *range(0x7f, 0xa1)]:
        out += [chr(c), 'a' + chr(c) + 'b', ' ' + chr(c) + ' x']
    if count > 10000:
        out += ["a" * 5000, " " * 3000, "ab" * 3000]
    while len(out) < count:
        out.append(''.join(piece() for _ in range(r.choice([1, 2, 3, 4, 6, 10, 25]))))
    return out[:count]


def packed(strings):
    return b"".join(struct.pack("<I", len(b)) + b for b in (s.encode() for s in strings))


def crc(ids):
    return struct.pack("<I", zlib.crc32(struct.pack(f"<{len(ids)}I", *ids)))


def text_crc(text):
    return struct.pack("<I", zlib.crc32(text.encode()))


def draws(count, vocab):
    """Lists of ids, by a generator that Go has, too."""
    x = 1
    for _ in range(count):
        ids = []
        for _ in range(12):
            x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
            ids.append((x >> 33) % vocab)
        yield ids


def reference(tok, strings):
    """For each string the sum of its ids, with what the template puts around them, and of the text of its ids;
    then for as many lists of ids the sum of their text without special tokens."""
    out = bytearray()
    for s in strings:
        out += crc(tok.encode(s).ids)
        out += text_crc(tok.decode(tok.encode(s, add_special_tokens=False).ids, skip_special_tokens=False))
    top = max(tok.get_vocab(with_added_tokens=True).values()) + 1
    for ids in draws(len(strings), top):
        out += text_crc(tok.decode(ids, skip_special_tokens=True))
    return bytes(out)


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NEMO = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^@\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[@]*|\s*[@]+|\s+(?!\S)|\s+""")
DEEPSEEK = (*DEEPSEEK[:2], DEEPSEEK[2].replace("[@", "[\r\n").replace("[^@", "[^\r\n"))


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def level(**k):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **k})


def trained(strings, pre, normalizer=None, added=(), template=(), tweak=None, ids=420):
    """A byte-level tokenizer in the manner of a family."""
    tok = Tokenizer(models.BPE())
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer, tok.decoder = pre, decoders.ByteLevel()
    tok.train_from_iterator(strings, trainers.BpeTrainer(vocab_size=ids, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return finished(tok, added, template, tweak)


def pieces(strings, normalizer, pre, decoder, added=(), template=(), tweak=None):
    """A tokenizer of characters with byte fallback."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tok.train_from_iterator(strings, trainers.BpeTrainer(vocab_size=700, special_tokens=special, limit_alphabet=150, show_progress=False))
    d = json.loads(tok.to_str())
    d["added_tokens"] = d["added_tokens"][:3]
    d["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tok = Tokenizer.from_str(json.dumps(d))
    tok.normalizer, tok.pre_tokenizer, tok.decoder = normalizer, pre, decoder
    return finished(tok, added, template, tweak)


def scored(strings, normalizer, pre, decoder, fallback, added=(), template=()):
    """A Unigram tokenizer, with byte fallback or without."""
    tok = Tokenizer(models.Unigram())
    tok.normalizer, tok.pre_tokenizer = normalizer, pre or pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if fallback else [])
    tok.train_from_iterator([s for s in strings if s.isascii() and s.strip() and "<0x" not in s and "<unk>" not in s and "s>" not in s] + WORDS[:12], trainers.UnigramTrainer(vocab_size=900, special_tokens=special, unk_token="<unk>", show_progress=False))
    d = json.loads(tok.to_str())
    d["added_tokens"] = d["added_tokens"][:3]
    d["model"]["byte_fallback"] = fallback
    tok = Tokenizer.from_str(json.dumps(d))
    tok.pre_tokenizer, tok.decoder = pre, decoder
    return finished(tok, added, template, None)


def finished(tok, added, template, tweak):
    tok.add_tokens([a for a in added if not a.special])
    tok.add_special_tokens([a for a in added if a.special])
    if template:
        before, after = template
        named = {x: tok.token_to_id(x) for x in before + after}
        tok.post_processor = processors.TemplateProcessing(single=" ".join([*before, "$A", *after]), special_tokens=list(named.items()))
    d = json.loads(tok.to_str())
    (tweak or (lambda d: None))(d)
    return json.dumps(d, ensure_ascii=False, separators=(",", ":"))


def special(*names):
    return [AddedToken(n, special=True, normalized=False) for n in names]


def families(strings):
    chat = special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    bytes_back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    odd = [AddedToken("[L]", lstrip=True, normalized=False), AddedToken("[R]", rstrip=True, normalized=False), AddedToken("[W]", single_word=True, normalized=False),
           AddedToken("[N]é", normalized=True), AddedToken("[L][R]", normalized=False), AddedToken("  ", normalized=False), AddedToken("ab", single_word=True, normalized=True)]

    def whole(d):
        d["model"]["ignore_merges"] = True

    def lines(d):
        d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]

    seq = pre_tokenizers.Sequence
    yield "gpt2", trained(strings, level(use_regex=True), added=special("<|endoftext|>"), tweak=lines)
    yield "gpt2split", trained(strings, seq([split(GPT2), level()]))
    yield "llama3", trained(strings, seq([split(LLAMA3), level()]), added=special("<|begin_of_text|>", "<|eot_id|>"), template=(["<|begin_of_text|>"], []), tweak=whole)
    yield "olmo2", trained(strings, seq([split(LLAMA3, "removed", True), level()]), added=chat)
    yield "qwen", trained(strings, seq([split(QWEN), level()]), normalizers.NFC(), chat + [AddedToken("<tool_call>", normalized=False)])
    yield "nemo", trained(strings, seq([split(NEMO), level()]), added=special("<s>", "</s>", "[INST]"), template=(["<s>"], ["</s>"]), tweak=whole)
    yield "o200k", trained(strings, seq([split(O200K), level()]), added=special("<|endoftext|>"), tweak=whole)
    yield "qwen35", trained(strings, seq([split(QWEN35), level()]), normalizers.NFC(), chat)
    yield "deepseek", trained(strings, seq([split(x) for x in DEEPSEEK] + [level()]), added=special("<｜begin▁of▁sentence｜>"), template=(["<｜begin▁of▁sentence｜>"], []))
    yield "falcon", trained(strings, seq([pre_tokenizers.Punctuation("contiguous"), level(use_regex=True), pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]), added=special("<|endoftext|>"))
    yield "smollm", trained(strings, seq([pre_tokenizers.Digits(individual_digits=True), level(use_regex=True)]), added=chat)
    yield "prefix", trained(strings, level(use_regex=True, add_prefix_space=True), added=chat)
    yield "odd", trained(strings, seq([split(QWEN), level()]), normalizers.NFC(), odd)
    spaced = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    yield "llama2", pieces(strings, spaced, None, decoders.Sequence(bytes_back + [decoders.Strip(" ", 1, 0)]), template=(["<s>"], []), tweak=lines)
    yield "llama2odd", pieces(strings, spaced, None, decoders.Sequence(bytes_back + [decoders.Strip(" ", 1, 0)]), added=odd)
    yield "gemma", pieces(strings, normalizers.Replace(" ", "▁"), None, decoders.Sequence(bytes_back), template=(["<s>"], []))
    yield "gemma2", pieces(strings, normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"), decoders.Sequence(bytes_back), added=odd)
    norm = normalizers
    meta = decoders.Metaspace(prepend_scheme="always")
    yield "unigram", scored(strings, None, pre_tokenizers.Metaspace(prepend_scheme="always"), meta, False, added=odd[:2], template=([], ["</s>"]))
    yield "unigrambytes", scored(strings, norm.Sequence([norm.NFKC(), norm.Replace(" ", "▁")]), None, decoders.Sequence(bytes_back), True, template=(["<s>"], []))
    for name, steps in {"nfd": [norm.NFD()], "nfkc": [norm.NFKC(), norm.Lowercase()], "nfkd": [norm.NFKD(), norm.StripAccents()], "strip": [norm.Strip(True, True), norm.Lowercase(), norm.NFC()]}.items():
        yield name, trained(strings, seq([split(QWEN), level()]), norm.Sequence(steps), chat)
    for scheme in "first", "always", "never":
        for cut in True, False:
            yield f"meta{scheme}{cut:d}", pieces(strings, None, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut), decoders.Metaspace(prepend_scheme=scheme), added=odd[:2])


def fixtures(*names):
    strings = nasty(2000)
    with gzip.GzipFile(f"{HERE}/strings.gz", "wb", mtime=0) as f:
        f.write(packed(strings))
    words = [s for s in strings if len(s) < 200] + WORDS * 20 + open(f"{HERE}/../../../docs/training.md").read().splitlines()
    for name, text in families(words):
        if names and name not in names:
            continue
        with gzip.GzipFile(f"{HERE}/{name}.json.gz", "wb", mtime=0) as f:
            f.write(text.encode())
        open(f"{HERE}/{name}.ref", "wb").write(reference(Tokenizer.from_str(text), strings))
        print(name, len(text))


def kinds(strings):
    """63 kinds of tokenizers: patterns, normal forms and models, of which the last seven are to be refused."""
    norm, seq, chat = normalizers, pre_tokenizers.Sequence, special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    meta = lambda scheme, cut=True: pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut)
    back = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    falcon = [pre_tokenizers.Punctuation("contiguous"), level(use_regex=True), pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]
    patterns = {"gpt2": [level(use_regex=True)], "gpt2split": [split(GPT2), level()], "cl100k": [split(LLAMA3), level()], "qwen2": [split(QWEN), level()], "qwen35": [split(QWEN35), level()],
                "nemo": [split(NEMO), level()], "o200k": [split(O200K), level()], "o200kremoved": [split(O200K, "removed", True), level()], "deepseek": [split(x) for x in DEEPSEEK] + [level()],
                "falcon": falcon, "digits": [pre_tokenizers.Digits(individual_digits=True), level(use_regex=True)], "prefix": [level(use_regex=True, add_prefix_space=True)]}
    for name, steps in patterns.items():
        yield "pattern-" + name, trained(strings, seq(steps) if len(steps) > 1 else steps[0], added=chat)
    steps = {"nfc": [norm.NFC()], "nfd": [norm.NFD()], "nfkc": [norm.NFKC()], "nfkd": [norm.NFKD()], "lower": [norm.Lowercase()], "strip": [norm.Strip(True, True)], "left": [norm.Strip(True, False)],
             "accents": [norm.NFD(), norm.StripAccents()], "bert": [norm.NFD(), norm.Lowercase(), norm.StripAccents()], "all": [norm.NFKC(), norm.Lowercase(), norm.Strip(True, True), norm.Replace("a", "bb")],
             "prepend": [norm.Prepend("x"), norm.NFKD()], "right": [norm.Strip(False, True), norm.NFC()], "lowernfc": [norm.Lowercase(), norm.NFC()], "replace": [norm.Replace("e", ""), norm.Replace("  ", " ")]}
    for name, some in steps.items():
        yield "normal-" + name, trained(strings, seq([split(QWEN), level()]), norm.Sequence(some), added=chat)
    spaced = norm.Sequence([norm.Prepend("▁"), norm.Replace(" ", "▁")])
    yield "bpe-spaced", pieces(strings, spaced, None, back)
    yield "bpe-gemma", pieces(strings, norm.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"), back)
    for scheme in "first", "always", "never":
        for cut in True, False:
            yield f"bpe-{scheme}{cut:d}", pieces(strings, None, meta(scheme, cut), decoders.Metaspace(prepend_scheme=scheme))
    yield "bpe-nfkc", pieces(strings, norm.NFKC(), meta("always"), decoders.Metaspace(prepend_scheme="always"))
    for fallback in True, False:
        for scheme in "first", "always", "never":
            for cut in True, False:
                yield f"unigram-{scheme}{cut:d}{fallback:d}", scored(strings, None, meta(scheme, cut), decoders.Metaspace(prepend_scheme=scheme), fallback)
        yield f"unigram-spaced{fallback:d}", scored(strings, spaced, None, back, fallback)
        for name, some in {"nfkc": [norm.NFKC()], "lower": [norm.NFKD(), norm.Lowercase(), norm.StripAccents()], "strip": [norm.Strip(True, True), norm.NFC()]}.items():
            yield f"unigram-{name}{fallback:d}", scored(strings, norm.Sequence(some), meta("always"), decoders.Metaspace(prepend_scheme="always"), fallback)
    yield "unigram-template", scored(strings, norm.NFKC(), meta("always"), decoders.Metaspace(prepend_scheme="always"), False, template=([], ["</s>"]))
    for name, pre in {"whitespace": pre_tokenizers.Whitespace(), "bert": pre_tokenizers.BertPreTokenizer(), "level": level(use_regex=True)}.items():
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.pre_tokenizer = pre
        tok.train_from_iterator(strings, trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[UNK]"], limit_alphabet=200, show_progress=False))
        yield "refused-wordpiece-" + name, tok.to_str()
    for name, pre in {"whitespace": pre_tokenizers.Whitespace(), "split": pre_tokenizers.WhitespaceSplit()}.items():
        tok = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        tok.pre_tokenizer = pre
        tok.train_from_iterator(strings, trainers.WordLevelTrainer(vocab_size=900, special_tokens=["[UNK]"], show_progress=False))
        yield "refused-wordlevel-" + name, tok.to_str()
    for name, pattern in {"word": r"\w+|[^\w\s]+|\s+", "other": r"\p{L}+|\P{L}+"}.items():
        yield "refused-pattern-" + name, trained(strings, seq([split(pattern), level()]))


def write_kinds(folder):
    words = [s for s in nasty(2000) if len(s) < 200] + WORDS * 20
    for name, text in kinds(words):
        os.makedirs(f"{folder}/{name}")
        open(f"{folder}/{name}/tokenizer.json", "w").write(text)
    real(folder)


def real(folder):
    strings = nasty(24000)
    open(f"{folder}/strings.bin", "wb").write(packed(strings))
    for name in sorted(os.listdir(folder)):
        if not os.path.exists(f"{folder}/{name}/tokenizer.json"):
            continue
        tok = Tokenizer.from_file(f"{folder}/{name}/tokenizer.json")
        out = reference(tok, strings)
        if os.path.exists(f"{folder}/text.txt"):
            out += crc(tok.encode(open(f"{folder}/text.txt", newline="").read()).ids)
        open(f"{folder}/{name}/reference.bin", "wb").write(out)
        print(name, flush=True)


MARKS = ["▁", "_", " ", "a", "", "▁▁", "é", "\n", "Ġ", "##", "</w>", "1"]
CONTENTS = [" ", "  ", "▁", "▁a", "\n", "é", "e\u0301", "a", "ab", "abc", "hello", " the", "<0x41>", "<s>", "[L]", "[R]x", "''", "\u0301", "İ", "你", "1", "12", "", "\x00", "Ġa", "th", "\u00a0"]
PATTERNS = [GPT2, LLAMA3, QWEN, NEMO, r"\s+", r"[^\s]+", " ", "a", r"\d", r"\p{N}", r"\w+|[^\w\s]+", ""]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def drawn_part(r, kind, inner=False):
    """A random normalizer, pre-tokenizer, post-processor or decoder."""
    flip = lambda: r.random() < .5
    pattern = lambda: r.choice([{"String": r.choice(MARKS)}, {"Regex": r.choice(PATTERNS)}])
    level = {"type": "ByteLevel", "add_prefix_space": flip(), "trim_offsets": flip(), "use_regex": flip()}
    meta = {"type": "Metaspace", "replacement": r.choice(["▁", "▁", "_"]), "prepend_scheme": r.choice(["first", "always", "never"]), "split": flip()}
    replace = {"type": "Replace", "pattern": pattern(), "content": r.choice(MARKS)}
    if kind == "normalizer":
        some = [{"type": "NFC"}, {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": flip(), "strip_right": flip()},
                {"type": "Prepend", "prepend": r.choice(MARKS)}, {"type": "Prepend", "prepend": "▁"}, replace, {"type": "Replace", "pattern": {"String": r.choice(MARKS)}, "content": r.choice(MARKS)}]
        key = "normalizers"
    elif kind == "pre_tokenizer":
        split = {"type": "Split", "pattern": pattern(), "behavior": r.choice(BEHAVIORS), "invert": r.random() < .2}
        some = [level, level, meta, meta, split, split, split, {"type": "Digits", "individual_digits": flip()}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}]
        key = "pretokenizers"
    elif kind == "post_processor":
        one = lambda: r.choice([{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"SpecialToken": {"id": "t", "type_id": 0}}])
        single = [one() for _ in range(r.choice([1, 2, 3]))]
        named = {n: {"id": n, "ids": r.choice([[5], [6, 7], [0]]), "tokens": [n] * r.choice([1, 2])} for n in ("<s>", "t")}
        some = [level, {"type": "TemplateProcessing", "single": single, "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": named}]
        key = "processors"
    else:
        some = [level, meta, replace, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": r.choice([" ", "▁", "a"]), "start": r.choice([0, 1, 2]), "stop": r.choice([0, 1, 2])},
                {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}]
        key = "decoders"
    if not inner and r.random() < .3:
        return r.choice([None, {"type": "Sequence", key: [drawn_part(r, kind, True) for _ in range(r.choice([0, 1, 2, 2, 3]))]}])
    return r.choice(some)


def drawn_change(r, d):
    """Changes one thing in a tokenizer.json."""
    m, flip = d["model"], lambda: r.random() < .5
    scored = m["type"] == "Unigram"
    ids = {x[0]: i for i, x in enumerate(m["vocab"])} if scored else m["vocab"]
    what = r.choice(["flag", "flag", "unk", "affix", "vocab", "merges", "normalizer", "pre_tokenizer", "post_processor", "decoder", "added", "added", "added", "beside"])
    if what == "flag":
        m[r.choice(["ignore_merges", "byte_fallback", "fuse_unk"])] = flip()
    elif what == "unk" and scored:
        m["unk_id"] = r.choice([None, 0, 1, 7, len(ids) - 1, len(ids)])
    elif what == "unk":
        m["unk_token"] = r.choice([None, "<unk>", "a", "nowhere", "!"])
    elif what == "affix":
        m[r.choice(["continuing_subword_prefix", "end_of_word_suffix", "dropout"])] = r.choice([None, "", 0.0, "##", 0.1])
    elif what == "vocab" and scored:
        piece = r.choice(m["vocab"])
        do = r.choice(["remove", "score", "score", "add", "rename"])
        if do == "remove":
            m["vocab"].remove(piece)
        elif do == "score":
            up = r.choice([0, 100])
            m["vocab"] = [[x, round(score) + up] for x, score in m["vocab"]]
        elif do == "rename":
            piece[0] = r.choice(CONTENTS)
        else:
            m["vocab"].append([r.choice(CONTENTS + ["unreachable thing"]), r.choice([-1.5, -20.0, 0.0, 3.0])])
    elif what == "vocab":
        name = r.choice(list(m["vocab"]))
        do = r.choice(["remove", "id", "same id", "add", "rename"])
        if do == "remove":
            del m["vocab"][name]
        elif do == "rename":
            m["vocab"][r.choice(CONTENTS)] = m["vocab"].pop(name)
        elif do == "add":
            m["vocab"][r.choice(CONTENTS + ["unreachable thing"])] = len(m["vocab"]) + r.choice([0, 0, 7])
        else:
            m["vocab"][name] = len(m["vocab"]) + 3 if do == "id" else m["vocab"][r.choice(list(m["vocab"]))]
    elif what == "merges" and m.get("merges"):
        i, k = r.randrange(len(m["merges"])), r.randrange(len(m["merges"]))
        do = r.choice(["remove", "twice", "swap", "absent", "form"])
        if do == "remove":
            del m["merges"][i]
        elif do == "twice":
            m["merges"].insert(k, m["merges"][i])
        elif do == "swap":
            m["merges"][i], m["merges"][k] = m["merges"][k], m["merges"][i]
        elif do == "absent":
            m["merges"].insert(k, ["nowhere", "a"] if isinstance(m["merges"][0], list) else "nowhere a")
        else:
            m["merges"] = [x.split(" ") if isinstance(x, str) else " ".join(x) for x in m["merges"]]
    elif what == "added" and (flip() or not d["added_tokens"]):
        top = max([*ids.values(), *(a["id"] for a in d["added_tokens"])]) + 1
        for content in r.sample(CONTENTS, r.choice([1, 1, 2, 3])):
            d["added_tokens"].append({"id": ids.get(content, top), "content": content, "single_word": flip(), "lstrip": flip(), "rstrip": flip(), "normalized": flip(), "special": flip()})
            top += content not in ids
    elif what == "added":
        a = r.choice(d["added_tokens"])
        key = r.choice(["single_word", "lstrip", "rstrip", "normalized", "special", "id", "content"])
        a[key] = r.choice([0, 1, a["id"] + 1, 5000]) if key == "id" else r.choice(CONTENTS) if key == "content" else not a[key]
    elif what == "beside":
        d.update(r.choice([{"truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}}, {"version": "2.0"}, {"padding": None},
                           {"padding": {"strategy": {"Fixed": 40}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>"}}]))
    elif what in d:
        d[what] = drawn_part(r, what)


def drawn(folder, seed, count):
    r, strings = random.Random(seed), nasty(300)
    os.makedirs(folder)
    open(f"{folder}/strings.bin", "wb").write(packed(strings))
    names = sorted(n for n in os.listdir(HERE) if n.endswith(".json.gz"))
    for i in range(count):
        d = json.loads(gzip.open(f"{HERE}/{r.choice(names)}").read())
        for _ in range(r.choice([1, 1, 2, 3])):
            drawn_change(r, d)
        os.makedirs(f"{folder}/{i}")
        text = json.dumps(d, ensure_ascii=False)
        open(f"{folder}/{i}/tokenizer.json", "w").write(text)
        try:
            tok = Tokenizer.from_str(text)
            tok.no_truncation(), tok.no_padding()
            open(f"{folder}/{i}/reference.bin", "wb").write(reference(tok, strings))
        except BaseException as e:  # its panics are no Exception
            open(f"{folder}/{i}/refused", "w").write(f"{type(e).__name__}: {e}"[:300])


if __name__ == "__main__":
    {"tables": tables, "fixtures": lambda: fixtures(*sys.argv[2:]), "real": lambda: real(sys.argv[2]), "kinds": lambda: write_kinds(sys.argv[2]), "drawn": lambda: drawn(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))}[sys.argv[1]]()
