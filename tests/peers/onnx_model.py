"""Writes the default model as ONNX, in the layout that transformers.js loads: for peers that read no GGUF.

    python onnx_model.py MODEL.gguf FOLDER

makes FOLDER/onnx/model.onnx (f32), FOLDER/onnx/model_q4.onnx (4 bits in blocks of 32, the last
matrix in 8, the embedding in f32) and the JSON
files beside them, all out of the GGUF alone. Both graphs are a Llama of ONNX Runtime's own fused operators, which are what
its fast path is made of: one matrix multiplication for queries, keys and values, attention that rotates and appends by
itself, a norm that adds the residual. The weights of model_q4.onnx are quantised again from the values that the GGUF's
Q4_1 stands for, because a zero point is a whole number here; they cost what they cost in any export, and answer a little
worse. The last matrix, in 8 bits, is the GGUF's own.
"""

import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize
from onnx import TensorProto, helper, numpy_helper, save

BLOCK = 32
FUSED = "com.microsoft"
F32, I64, I32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


class Model:
    """A Llama in a GGUF file: its figures, and its tensors in the order of rotation that halves a head."""

    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise SystemExit(f"{path} is of the architecture {architecture}; only llama is written as ONNX")
        self.layers = self.field("llama.block_count")
        self.width = self.field("llama.embedding_length")
        self.inner = self.field("llama.feed_forward_length")
        self.heads = self.field("llama.attention.head_count")
        self.kv_heads = self.field("llama.attention.head_count_kv")
        self.head = self.field("llama.rope.dimension_count")
        self.theta = self.field("llama.rope.freq_base")
        self.epsilon = self.field("llama.attention.layer_norm_rms_epsilon")
        self.longest = self.field("llama.context_length")
        self.vocab = self.field("tokenizer.ggml.tokens")

    def field(self, name):
        return self.reader.fields[name].contents()

    def weight(self, name):
        tensor = self.tensors[f"{name}.weight"]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    def halves(self, name, heads):
        """The rows of queries or keys: GGUF has the two of a rotated pair side by side, ONNX half a head apart."""
        rows = self.weight(name)
        return rows.reshape(heads, self.head // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)

    def qkv(self, layer):
        at = f"blk.{layer}.attn"
        q = self.halves(f"{at}_q", self.heads)
        k = self.halves(f"{at}_k", self.kv_heads)
        return np.concatenate([q, k, self.weight(f"{at}_v")])


def quantised(rows):
    """Rows of 4-bit codes, two a byte, with each block's scale and whole zero point: those, of some, of the least error."""
    blocks = rows.reshape(len(rows), -1, BLOCK)
    low = np.minimum(blocks.min(-1, keepdims=True), 0)
    high = np.maximum(blocks.max(-1, keepdims=True), 0)
    best = None
    for reach in np.linspace(14, 17, 13):
        scale = np.maximum((high - low) / np.float32(reach), np.float32(1e-12))
        middle = 7.5 - (high + low) / 2 / scale
        for zero in (np.floor(middle), np.ceil(middle)):
            zero = np.clip(zero, 0, 15)
            codes = np.clip(np.rint(blocks / scale) + zero, 0, 15)
            error = ((codes - zero) * scale - blocks) ** 2
            tried = [error.sum(-1, keepdims=True), scale, zero, codes]
            if best is None:
                best = tried
            better = tried[0] < best[0]
            best = [np.where(better, new, old) for new, old in zip(tried, best)]
    _, scale, zero, codes = best
    return pairs(codes), scale[..., 0].astype(np.float32), pairs(zero[..., 0])


def pairs(codes):
    """Two codes a byte, the first in the lower half; a row of odd length ends with half a byte of zero."""
    codes = codes.astype(np.uint8)
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], -1)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def bytes_of(tensor):
    """The codes and scales of a Q8_0 tensor as they are, around 128."""
    blocks = np.asarray(tensor.data).reshape(tensor.data.shape[0], -1, BLOCK + 2)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    return blocks[..., 2:] ^ np.uint8(0x80), scales


class Graph:
    """The decoder as it grows, node by node."""

    def __init__(self, model, four_bits):
        self.model, self.four_bits = model, four_bits
        self.nodes, self.constants = [], []

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, kind, inputs, outputs, domain=None, **settings):
        name = f"/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, domain=domain, **settings))
        return outputs[0]

    def multiply(self, name, value, rows, out=None):
        """`value` by the transpose of `rows`."""
        out = out or f"{name}.out"
        if not self.four_bits:
            return self.node("MatMul", [value, self.constant(f"{name}.weight", rows.T)], [out])
        return self.multiply_quantised(name, value, rows.shape, out, 4, quantised(rows))

    def multiply_quantised(self, name, value, shape, out, bits, parts):
        words = ("codes", "scales", "zeros")
        inputs = [value] + [self.constant(f"{name}.{word}", part) for word, part in zip(words, parts)]
        n, k = shape
        settings = {"K": k, "N": n, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", inputs, [out], domain=FUSED, **settings)

    def head_multiply(self, value, embedding):
        """The embedding gives the logits too; where the GGUF has it in Q8_0 its bytes are taken over."""
        tensor = self.model.tensors["token_embd.weight"]
        if self.four_bits and tensor.tensor_type.name == "Q8_0":
            return self.multiply_quantised("lm_head", value, embedding.shape, "logits", 8, bytes_of(tensor))
        return self.multiply("lm_head", value, embedding, "logits")

    def norm(self, name, residual, branch):
        """The norm of the sum, and the sum."""
        weight = self.constant(f"{name}.weight", self.model.weight(name))
        if branch is None:
            settings = {"axis": -1, "epsilon": self.model.epsilon, "stash_type": 1}
            return self.node("SimplifiedLayerNormalization", [residual, weight], [f"{name}.out"], **settings), residual
        outputs = [f"{name}.out", "", "", f"{name}.sum"]
        settings = {"domain": FUSED, "epsilon": self.model.epsilon}
        self.node("SkipSimplifiedLayerNormalization", [residual, branch, weight], outputs, **settings)
        return outputs[0], outputs[3]

    def lengths(self):
        """What attention asks for beside its inputs, all out of the mask's shape and sum."""
        one = self.constant("one", np.array([1], np.int64))
        total = self.node("ReduceSum", ["attention_mask", one], ["mask.sum"], keepdims=1)
        past = self.node("Sub", [total, one], ["mask.last"])
        shape = self.node("Shape", ["attention_mask"], ["mask.shape"])
        width = self.node("Gather", [shape, self.constant("one_scalar", np.array(1, np.int64))], ["mask.width"], axis=0)
        to = helper.TensorProto.INT32
        return self.node("Cast", [past], ["seqlens_k"], to=to), self.node("Cast", [width], ["total_len"], to=to)

    def rotation(self):
        model = self.model
        speeds = model.theta ** -(np.arange(0, model.head, 2, dtype=np.float64) / model.head)
        angles = np.outer(np.arange(model.longest, dtype=np.float64), speeds)
        return [
            self.constant("cos_cache", np.cos(angles).astype(np.float32)),
            self.constant("sin_cache", np.sin(angles).astype(np.float32)),
        ]

    def block(self, layer, residual, branch, beside):
        model, at = self.model, f"blk.{layer}"
        value, residual = self.norm(f"{at}.attn_norm", residual, branch)
        qkv = self.multiply(f"{at}.qkv", value, model.qkv(layer))
        past = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        outputs = [f"{at}.attn.out", f"present.{layer}.key", f"present.{layer}.value"]
        attended = self.node(
            "GroupQueryAttention",
            [qkv, "", "", *past, *beside],
            outputs,
            domain=FUSED,
            num_heads=model.heads,
            kv_num_heads=model.kv_heads,
            scale=float(model.head**-0.5),
            do_rotary=1,
            rotary_interleaved=0,
        )
        branch = self.multiply(f"{at}.o", attended, model.weight(f"{at}.attn_output"))
        value, residual = self.norm(f"{at}.ffn_norm", residual, branch)
        gate = self.multiply(f"{at}.gate", value, model.weight(f"{at}.ffn_gate"))
        up = self.multiply(f"{at}.up", value, model.weight(f"{at}.ffn_up"))
        gated = self.node("Mul", [gate, self.node("Sigmoid", [gate], [f"{at}.sigmoid"])], [f"{at}.silu"])
        inner = self.node("Mul", [gated, up], [f"{at}.inner"])
        return residual, self.multiply(f"{at}.down", inner, model.weight(f"{at}.ffn_down"))

    def build(self):
        model = self.model
        embedding = model.weight("token_embd")
        residual = self.node("Gather", [self.constant("embedding", embedding), "input_ids"], ["embedded"])
        beside = [*self.lengths(), *self.rotation()]
        branch = None
        for layer in range(model.layers):
            residual, branch = self.block(layer, residual, branch, beside)
        value, _ = self.norm("output_norm", residual, branch)
        # Where only the last position's logits are wanted, only they are computed; 0 wants all of them.
        start = self.node("Neg", ["num_logits_to_keep"], ["keep.from"])
        start = self.node("Reshape", [start, self.constant("shape_one", np.array([1], np.int64))], ["keep.start"])
        end = self.constant("keep.end", np.array([np.iinfo(np.int64).max], np.int64))
        value = self.node("Slice", [value, start, end, "one"], ["kept"])
        self.head_multiply(value, embedding)
        return helper.make_model(
            helper.make_graph(self.nodes, "decoder", self.inputs(), self.outputs(), self.constants),
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(FUSED, 1)],
            ir_version=10,
            producer_name="firstlight-peers",
        )

    def caches(self, stem, length):
        model = self.model
        shape = ["batch_size", model.kv_heads, length, model.head]
        names = [f"{stem}.{layer}.{kind}" for layer in range(model.layers) for kind in ("key", "value")]
        return [helper.make_tensor_value_info(name, F32, shape) for name in names]

    def inputs(self):
        ids = helper.make_tensor_value_info("input_ids", I64, ["batch_size", "sequence_length"])
        mask = helper.make_tensor_value_info("attention_mask", I64, ["batch_size", "total_sequence_length"])
        keep = helper.make_tensor_value_info("num_logits_to_keep", I64, [])
        return [ids, mask, keep, *self.caches("past_key_values", "past_sequence_length")]

    def outputs(self):
        logits = helper.make_tensor_value_info("logits", F32, ["batch_size", "kept", len(self.model.vocab)])
        return [logits, *self.caches("present", "total_sequence_length")]


def config(model):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": model.field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": model.field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": model.field("tokenizer.ggml.padding_token_id"),
        "head_dim": model.head,
        "hidden_act": "silu",
        "hidden_size": model.width,
        "intermediate_size": model.inner,
        "max_position_embeddings": model.longest,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "rms_norm_eps": model.epsilon,
        "rope_theta": model.theta,
        "tie_word_embeddings": True,
        "vocab_size": len(model.vocab),
    }


def special(model):
    """The control tokens: type 3 in a GGUF."""
    kinds = model.field("tokenizer.ggml.token_type")
    return [
        {"id": idx, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for idx, (token, kind) in enumerate(zip(model.vocab, kinds))
        if kind == 3
    ]


def tokenizer(model):
    pre = model.field("tokenizer.ggml.pre")
    if pre != "smollm":
        raise SystemExit(f"the GGUF splits text as {pre} does; only smollm's way is written as JSON")
    # Every digit is a word of its own, and then the byte-level rule applies.
    digits = {"type": "Digits", "individual_digits": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special(model),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, level]},
        "post_processor": None,
        "decoder": {**level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: idx for idx, token in enumerate(model.vocab)},
            "merges": [merge.split(" ") for merge in model.field("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(model):
    name = lambda kind: model.vocab[model.field(f"tokenizer.ggml.{kind}_token_id")]
    return {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "bos_token": name("bos"),
        "eos_token": name("eos"),
        "pad_token": name("padding"),
        "unk_token": name("unknown"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.longest,
        "chat_template": model.field("tokenizer.chat_template"),
    }


def main(source, folder):
    model, folder = Model(source), Path(folder)
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    ends = {key: config(model)[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    documents = {
        "config": config(model),
        "generation_config": {**ends, "_from_model_config": True},
        "tokenizer": tokenizer(model),
        "tokenizer_config": tokenizer_config(model),
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    for name, four_bits in (("model", False), ("model_q4", True)):
        path = folder / "onnx" / f"{name}.onnx"
        save(Graph(model, four_bits).build(), path)
        print(json.dumps({"file": str(path), "bytes": path.stat().st_size}))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
