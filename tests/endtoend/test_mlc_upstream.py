# SPDX-License-Identifier: Apache-2.0
"""Defects that the patches to MLC-LLM mend, each by itself on the patched tree."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.mlc_tree import TINY, hf_weights, result_of, run_python, tools, write_model

from crosslab.models.params import from_bfloat16, read_stored, to_bfloat16

pytestmark = pytest.mark.slow

SCATTERED = """
import json
from mlc_llm.compiler_pass.scatter_tuple_get_item import ScatterTupleGetItem
from tvm import relax

tensor = relax.TensorType((4,), "float32")
builder = relax.BlockBuilder()
pair = relax.Var("pair", relax.TupleType([tensor, tensor]))
with builder.function("main", [pair]):
    with builder.dataflow():
        first = builder.emit(relax.TupleGetItem(pair, 0), name_hint="first")
        total = builder.emit(relax.op.add(first, first), name_hint="total")
        out = builder.emit_output(relax.op.negative(total), name_hint="out")
    builder.emit_func_output(out)
main = ScatterTupleGetItem()(builder.finalize())["main"]
print(json.dumps([binding.var.name for binding in main.body.blocks[0].bindings]))
"""

STAGED = """
import json
from mlc_llm.compiler_pass.pipeline_parallel_rewrite import PipelineParallelRewrite
from tvm import relax

tensor = relax.TensorType((4,), "float32")
builder = relax.BlockBuilder()
x = relax.Var("x", tensor)
packed = relax.Var("packed_params", relax.TupleType([tensor, tensor]))
with builder.function("main", [x, packed], {"pipeline_parallel_stages": 2, "num_input": 1}):
    with builder.dataflow():
        first = builder.emit(relax.TupleGetItem(packed, 0), name_hint="first_weight")
        hidden = builder.emit(relax.op.add(x, first), name_hint="hidden")
        boundary = relax.call_pure_packed(
            "mlc.pipeline_parallel_stage_boundary", hidden, ty_args=tensor
        )
        received = builder.emit(boundary, name_hint="received")
        second = builder.emit(relax.TupleGetItem(packed, 1), name_hint="second_weight")
        out = builder.emit_output(relax.op.add(received, second), name_hint="result")
    builder.emit_func_output(out)
module = PipelineParallelRewrite()(builder.finalize())
print(json.dumps({
    var.name_hint: [binding.var.name for binding in function.body.blocks[0].bindings]
    for var, function in module.functions_items()
}))
"""

SCALED = """
import json
from types import SimpleNamespace
from mlc_llm.model.gemma import gemma_model
from mlc_llm.model.gemma2.gemma2_model import Gemma2Attention, Gemma2Config

class Cache:
    def attention_with_fused_qkv(self, layer, qkv, heads, sm_scale):
        self.scale = sm_scale
        return qkv

config = Gemma2Config(
    hidden_size=64, intermediate_size=64, attention_bias=False, num_attention_heads=2,
    num_key_value_heads=1, head_dim=128, num_hidden_layers=1, rms_norm_eps=1e-6, vocab_size=32,
    hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=144, sliding_window=64,
    context_window_size=64,
)
attention, cache = Gemma2Attention(config), Cache()
attention.qkv_proj = attention.o_proj = lambda x: x
gemma_model.op = SimpleNamespace(reshape=lambda x, shape: x)
attention.forward(SimpleNamespace(shape=(1, 1, 64)), cache, 0)
print(json.dumps(cache.scale))
"""

GPTJ = """
import json
from mlc_llm.model.gpt_j import gpt_j_loader
from mlc_llm.model.gpt_j.gpt_j_model import GPTJConfig
config = GPTJConfig(
    vocab_size=32, n_embd=64, n_layer=1, n_head=2, layer_norm_epsilon=1e-5, rotary_dim=16,
    activation_function="gelu_new", n_inner=256, context_window_size=64,
)
mapping = gpt_j_loader.huggingface(config, None).param_map
print(json.dumps(sorted(name for names in mapping.values() for name in names)))
"""

RANGES = """
import json
from mlc_llm.op.moe_misc import get_indptr
from tvm import relax
from tvm.relax.frontend import nn

class Ranges(nn.Module):
    def forward(self, cumsum, tokens):
        rows = tokens.shape[0]
        return get_indptr(cumsum, 4, rows, INCLUSIVE, "int32")

spec = {
    "cumsum": nn.spec.Tensor(["n4"], "int32"),
    "tokens": nn.spec.Tensor(["n"], "int32"),
    "$": {"param_mode": "none", "effect_mode": "none"},
}
module, _ = Ranges().export_tvm({"forward": spec})
relax.analysis.well_formed(module)
function = module["get_expert_instance_indptr"]
print(json.dumps([p.name.removeprefix("var_") for p in function.params]))
"""

CHOSEN = """
import json
from mlc_llm.op.moe_misc import gating_softmax_topk
from tvm import tirx
from tvm.relax.frontend import nn

class Choice(nn.Module):
    def forward(self, x: nn.Tensor):
        return gating_softmax_topk(x, 2, norm_topk_prob=NORM)

spec = {"x": nn.spec.Tensor(["n", 8], "float32")}
spec["$"] = {"param_mode": "none", "effect_mode": "none"}
module, _ = Choice().export_tvm({"forward": spec})
stored = set()

def visit(node):
    if isinstance(node, tirx.BufferStore) and node.buffer.name == "local_top_k_index":
        stored.update(int(i) for i in node.indices if isinstance(i, tirx.IntImm))

for function in module.functions.values():
    if isinstance(function, tirx.PrimFunc):
        tirx.stmt_functor.post_order_visit(function.body, visit)
print(json.dumps(sorted(stored)))
"""

PAIRED = """
import json
from mlc_llm.model.MODULE import CAUSAL, CONFIG
from mlc_llm.nn import PagedKVCache
PagedKVCache.create_generic = staticmethod(lambda **given: given)
model = CAUSAL(CONFIG)
print(json.dumps(model.create_paged_kv_cache(1, 1, 1, 1, 0)["rope_scaling"]))
"""
GPTJ_MODEL = {
    "MODULE": "gpt_j.gpt_j_model",
    "CAUSAL": "GPTJForCausalLM",
    "CONFIG": """GPTJConfig(vocab_size=32, n_embd=64, n_layer=1, n_head=2,
        layer_norm_epsilon=1e-5, rotary_dim=16, activation_function="gelu_new", n_inner=256,
        context_window_size=64)""",
}
COHERE_MODEL = {
    "MODULE": "cohere.cohere_model",
    "CAUSAL": "CohereForCausalLM",
    "CONFIG": """CohereConfig.from_dict({"model_type": "cohere", "hidden_size": 64,
        "vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 64, "layer_norm_eps": 1e-5,
        "logit_scale": 0.25, "context_window_size": 64, "head_dim": 32})""",
}

HEADS = """
import json
from mlc_llm.model.ministral3.ministral3_model import Ministral3Attention, Ministral3Config
yarn = {"rope_type": "yarn", "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}
config = Ministral3Config(
    hidden_size=64, intermediate_size=64, num_attention_heads=4, num_hidden_layers=1,
    rms_norm_eps=1e-5, vocab_size=32, head_dim=16, rope_parameters=yarn, context_window_size=64,
    sliding_window_size=-1,
)
print(json.dumps(Ministral3Attention(config).softmax_scale))
"""

GEMMA3 = """
import json
from mlc_llm.compiler_pass.dispatch_kv_cache_creation import extract_creation_args
from mlc_llm.model.gemma3.gemma3_model import Gemma3Config, Gemma3ForCausalLM
config = Gemma3Config.from_dict(dict(
    hidden_size=64, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, vocab_size=32, sliding_window=48,
    rope_scaling={"rope_type": "linear", "factor": 8.0},
))
model = Gemma3ForCausalLM(config)
module, _ = model.export_tvm(spec=model.get_default_spec())
created = extract_creation_args(module["create_paged_kv_cache"])
sizes = [created["layer_sliding_window_size"], config.prefill_chunk_size]
print(json.dumps([sizes, created["rope_scale"]]))
"""

# Gemma 3 of the last script in halves, with the cache as it is and in int8.
INT8_CACHE = (
    GEMMA3.rpartition("created =")[0]
    + """
import os, tempfile
from pathlib import Path
import tvm
from mlc_llm.compiler_pass.dispatch_kv_cache_creation import DispatchKVCacheCreation
from mlc_llm.compiler_pass.rvv.configuration import VARIABLE, Configuration
model.to("float16")
module, _ = model.export_tvm(spec=model.get_default_spec())
found = []
for kind in ("float32", "int8"):
    path = Path(tempfile.mkdtemp()) / "passes.json"
    Configuration(kv_cache=kind).write(path)
    os.environ[VARIABLE], metadata = str(path), {}
    made = DispatchKVCacheCreation(tvm.target.Target("llvm"), False, metadata)(module)
    text = made["create_tir_paged_kv_cache"].script()
    sizes = text.partition("R.shape([max_batch_size")[2].partition("]")[0].split(", ")[5:]
    found.append([metadata["kv_cache"]["row_bytes"], *map(int, sizes)])
print(json.dumps(found))
"""
)

LOGITS = """
import json
import numpy as np
from types import SimpleNamespace
from mlc_llm.model.MODULE import CAUSAL, CONFIG
model = CAUSAL(CONFIG)
table = SimpleNamespace(lm_head_forward=lambda hidden: hidden)
decoder = lambda x, cache: x
decoder.embed_tokens = table
model.model = decoder
ones = np.ones((1, 1, 32), "float32")
logits = [model.decode(ones, None)[0], model.batch_forward(ones, None)]
print(json.dumps([float(values.max()) for values in logits]))
"""

EXPERTS = """
import json
import numpy as np
import tvm
from mlc_llm.op import moe_matmul
from tvm import relax
from tvm.relax.frontend import nn

class Products(nn.Module):
    def forward(self, x: nn.Tensor, w: nn.Tensor, begins: nn.Tensor):
        return moe_matmul.group_gemm(x, w, begins)

class Single(nn.Module):
    def forward(self, x: nn.Tensor, w: nn.Tensor, chosen: nn.Tensor):
        return moe_matmul.gemv(x, w, chosen)

def made(module, x, index):
    spec = {
        "x": nn.spec.Tensor(x, "float32"), "w": nn.spec.Tensor([3, 8, 16], "float32"),
        list(module.forward.__annotations__)[2]: nn.spec.Tensor(index, "int32"),
        "$": {"param_mode": "none", "effect_mode": "none"},
    }
    with tvm.target.Target("llvm"):
        exported, _ = module.export_tvm({"forward": spec})
        return relax.VirtualMachine(tvm.compile(exported, target="llvm"), tvm.cpu())["forward"]

rng = np.random.default_rng(0)
w = rng.standard_normal((3, 8, 16)).astype("float32")
x = rng.standard_normal((5, 16)).astype("float32")
begins = np.array([0, 2, 2, 5], "int32")
tensors = [tvm.runtime.tensor(a) for a in (x, w, begins)]
many = made(Products(), ["n", 16], [4])(*tensors).numpy()
wanted = np.stack([x[i] @ w[0 if i < 2 else 2].T for i in range(5)])
tensors = [tvm.runtime.tensor(a) for a in (x[:1], w, np.array([[2, 1]], "int32"))]
one = made(Single(), [1, 16], [1, 2])(*tensors).numpy()
chosen = np.stack([x[0] @ w[2].T, x[0] @ w[1].T])
print(json.dumps([float(abs(many - wanted).max()), float(abs(one - chosen).max())]))
"""

LOWERED = """
import json
import tvm
from mlc_llm.compiler_pass import pipeline as _
from tvm import relax, tirx
target = tvm.target.Target({"kind": "llvm", "host": {"kind": "llvm"}})
about = {"pipeline_parallel_stages": 1, "prefill_chunk_size": 8, "max_batch_size": 1}
about |= {"kv_state_kind": "none", "params": []}
lower = relax.get_pipeline(
    "mlc_llm", target=target, metadata=about, variable_bounds={"batch_size": 1}
)
"""

BOUND = """
from mlc_llm.op.moe_misc import gating_softmax_topk
from tvm.relax.frontend import nn

class Choice(nn.Module):
    def forward(self, x: nn.Tensor):
        return gating_softmax_topk(x, 2)

spec = {"x": nn.spec.Tensor(["n", 8], "float32")}
spec["$"] = {"param_mode": "none", "effect_mode": "none"}
module, _ = Choice().export_tvm({"forward": spec})
bound = []

def visit(node):
    if isinstance(node, tirx.For) and node.kind == tirx.ForKind.THREAD_BINDING:
        bound.append(str(node.loop_var))

with target:
    module = lower(module)
for function in module.functions.values():
    if isinstance(function, tirx.PrimFunc):
        tirx.stmt_functor.post_order_visit(function.body, visit)
print(json.dumps(bound))
"""

UNFUSED = """
n = tirx.Var("n", "int64")
builder = relax.BlockBuilder()
tokens = relax.Var("tokens", relax.TensorType((n,), "int32"))
x = relax.Var("x", relax.TensorType((n * 2, 8), "float32"))
with builder.function("main", [tokens, x]):
    with builder.dataflow():
        pair = builder.emit(relax.op.split(x, 2, axis=1))
        gate = builder.emit(relax.op.nn.silu(builder.emit(relax.TupleGetItem(pair, 0))))
        rest = builder.emit(relax.TupleGetItem(pair, 1))
        out = builder.emit_output(relax.op.multiply(gate, rest))
    builder.emit_func_output(out)
with target:
    module = lower(builder.finalize())
print(json.dumps(sorted(var.name_hint for var in module.functions if "fused" in var.name_hint)))
"""

PROMISED = """
import json
import tvm
from mlc_llm.compiler_pass import pipeline as _
from tvm import relax, tirx

n = tirx.Var("n", "int64")
builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((n, 8), "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        out = builder.emit_output(relax.op.multiply(x, x))
    builder.emit_func_output(out)
target = tvm.target.Target({"kind": "llvm", "host": {"kind": "llvm"}})
about = {"pipeline_parallel_stages": 1, "prefill_chunk_size": 8, "max_batch_size": 1}
about |= {"kv_state_kind": "none", "params": []}
lower = relax.get_pipeline(
    "mlc_llm", target=target, metadata=about, variable_bounds={"batch_size": 1}
)
with target:
    module = lower(builder.finalize())
print(json.dumps({
    var.name_hint: bool(function.attrs.get("tirx.noalias", False))
    for var, function in module.functions_items()
    if isinstance(function, tirx.PrimFunc)
}))
"""

WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = sys.modules["safetensors"] = None
sys.argv = ["mlc_llm", *sys.argv[1:]]
runpy.run_module("mlc_llm", run_name="__main__")
"""


YARN = """
import json
from types import SimpleNamespace
from mlc_llm.model.deepseek_v2.deepseek_v2_model import DeepseekV2YarnRotaryEmbedding

scaling = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1}
scaling["original_max_position_embeddings"] = 4096
about = SimpleNamespace(rope_scaling=scaling, qk_rope_head_dim=64, rope_theta=10000)
turn = DeepseekV2YarnRotaryEmbedding(about).rope_fn
print(json.dumps([turn.func.__name__, turn.keywords["inv_theta_log_scale"]]))
"""


def test_compiler_starts_without_the_native_library() -> None:
    detection = run_python("-m", "mlc_llm.cli.check_device", "cpu")
    assert detection.stdout.startswith("check_device:0"), detection.stderr
    for command in ("convert_weight", "compile"):
        done = run_python("-m", "mlc_llm", command, "--help")
        assert done.returncode == 0, done.stderr


def test_who_asks_for_the_engine_is_told_that_its_library_is_missing() -> None:
    done = run_python("-c", "import mlc_llm; mlc_llm.MLCEngine")
    assert done.returncode != 0
    assert "Cannot find libraries: " in done.stderr
    done = run_python("-c", "import mlc_llm; mlc_llm.no_such_name")
    assert "module 'mlc_llm' has no attribute 'no_such_name'" in done.stderr


@pytest.mark.parametrize("inclusive", [True, False])
def test_ranges_of_experts_are_well_formed(inclusive: bool) -> None:
    parameters = result_of(RANGES.replace("INCLUSIVE", str(inclusive)))
    assert parameters == ["cumsum", "batch_size", "indptr"]


def test_gemma2_scales_attention_as_configured() -> None:
    assert result_of(SCALED) == pytest.approx(144**-0.5)


def test_gptj_is_loaded_from_its_published_names() -> None:
    names = result_of(GPTJ)
    assert isinstance(names, list)
    assert {f"transformer.h.0.attn.{n}_proj.weight" for n in ("q", "k", "v", "out")} <= set(names)


def filled(program: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        program = program.replace(name, value)
    # The config's class is imported by its name alone.
    return program.replace(
        f", {values['CONFIG']}\n", f", {values['CONFIG'].partition('(')[0].partition('.')[0]}\n", 1
    )


@pytest.mark.parametrize("norm", [True, False])
def test_the_choice_of_experts_stays_within_its_buffer(norm: bool) -> None:
    assert result_of(CHOSEN.replace("NORM", str(norm))) == [0, 1]


def test_gptj_pairs_neighbouring_features() -> None:
    assert result_of(filled(PAIRED, GPTJ_MODEL)) == {"rope_type": "gptj"}


def test_cohere_pairs_neighbouring_features() -> None:
    assert result_of(filled(PAIRED, COHERE_MODEL)) == {"rope_type": "gptj"}


def test_cohere_scales_its_logits() -> None:
    assert result_of(filled(LOGITS, COHERE_MODEL)) == [0.25, 0.25]


def test_ministral3_scales_attention_by_its_heads() -> None:
    assert result_of(HEADS) == 0.25


def test_gemma3_keeps_its_window() -> None:
    sizes, _ = result_of(GEMMA3)  # type: ignore[misc]
    assert sizes == [48, 48]


def test_gemma3_scales_positions_linearly() -> None:
    _, scale = result_of(GEMMA3)  # type: ignore[misc]
    assert scale == 0.125


def test_the_cache_is_in_int8_where_that_is_asked_for() -> None:
    # Bytes of a key of 32 elements; the window of layers; for the runtime, the bytes again.
    assert result_of(INT8_CACHE) == [[64, 48], [36, 48, 36]]


def test_deepseek_v2_reads_its_rope_scaling() -> None:
    # What a published config says, without the name and the figure that TVM asks for.
    kept = result_of(YARN)
    assert isinstance(kept, list)
    name, figure = kept
    assert name == "rope_freq_yarn"
    assert figure == pytest.approx(1 / (2 * np.log(10000.0)))


def test_experts_multiply_on_a_cpu() -> None:
    errors = result_of(EXPERTS)
    assert isinstance(errors, list)
    assert max(errors) < 1e-5


def test_no_loop_is_bound_to_threads_on_a_cpu() -> None:
    assert result_of(LOWERED + BOUND) == []


def test_functions_of_a_size_are_not_fused() -> None:
    assert result_of(LOWERED + UNFUSED) == []


def test_scattered_tuple_items_keep_their_names() -> None:
    names = result_of(SCATTERED)
    assert names == ["first", "first", "total", "out"]


def test_pipeline_stages_keep_their_names() -> None:
    functions = result_of(STAGED)
    assert isinstance(functions, dict)
    assert functions["main_stage0"][:2] == ["first_weight", "hidden"]
    assert functions["main_stage1"] == ["received", "second_weight", "result"]


def test_every_function_is_promised_not_to_alias() -> None:
    promised = result_of(PROMISED)
    assert isinstance(promised, dict)
    assert {"multiply", "shape_func"} <= promised.keys()  # a kernel, and one that lowering adds
    assert [name for name, kept in promised.items() if not kept] == []


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_convert_without_torch(tmp_path: Path, stored: type) -> None:
    tools()
    source = {name: values.astype(stored) for name, values in hf_weights(TINY, 1).items()}
    model, output = write_model(tmp_path / "model", source), tmp_path / "params"
    arguments = (str(model), "--quantization", "q0f32", "--device", "cpu", "--output", str(output))
    done = run_python("-c", WITHOUT_TORCH, "convert_weight", *arguments)
    assert done.returncode == 0, done.stderr
    params = read_stored(output)

    def expected(*names: str) -> np.ndarray:
        whole = np.concatenate([source[name].astype(np.float32) for name in names])
        return from_bfloat16(to_bfloat16(whole))

    at = "model.layers.1.self_attn"
    fused = expected(*(f"{at}.{part}_proj.weight" for part in "qkv"))
    np.testing.assert_array_equal(params[f"{at}.qkv_proj.weight"], fused)
    np.testing.assert_array_equal(params["lm_head.weight"], expected("lm_head.weight"))
    assert sum(values.size for values in params.values()) == sum(v.size for v in source.values())


@pytest.mark.parametrize("damage", ["cut", "header"])
def test_damaged_weights_are_refused(tmp_path: Path, damage: str) -> None:
    tools()
    model = write_model(tmp_path / "model", hf_weights(TINY, 1))
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-64] if damage == "cut" else b"not a header" + data)
    arguments = (str(model), "--quantization", "q0f32", "--device", "cpu", "--output")
    done = run_python("-m", "mlc_llm", "convert_weight", *arguments, str(tmp_path / "params"))
    assert done.returncode != 0
    assert "model.safetensors" in done.stderr
    assert ("cut short" if damage == "cut" else "not a safetensors file") in done.stderr


CHATGLM = """
import json
from mlc_llm.model.chatglm3.chatglm3_model import ChatGLMForCausalLM, GLMConfig
from mlc_llm.nn import PagedKVCache

sizes = {"hidden_size": 256, "num_layers": 1, "kv_channels": 64, "num_attention_heads": 4}
sizes |= {"ffn_hidden_size": 384, "layernorm_epsilon": 1e-5, "multi_query_group_num": 2}
names = ("post_layer_norm", "rmsnorm", "add_qkv_bias", "multi_query_attention")
flags = dict.fromkeys(names, True) | {"add_bias_linear": False}
flags["apply_query_key_layer_scaling"] = True
PagedKVCache.create_generic = staticmethod(lambda **given: given)
config = GLMConfig(**sizes, **flags, vocab_size=32, context_window_size=64)
made = ChatGLMForCausalLM(config).create_paged_kv_cache(1, 1, 1, 1, 0)
print(json.dumps([made["rope_scaling"], made["rotary_dim"]]))
"""

QWEN35 = """
import json
from mlc_llm.model.model import MODELS
from tvm.target import Target

sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 32}
sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
linear = {"key_head_dim": 16, "value_head_dim": 16, "num_key_heads": 1, "num_value_heads": 2}
sizes |= {f"linear_{name}": size for name, size in linear.items()}
entry = MODELS["qwen3_5"]
config = entry.config(**sizes, full_attention_interval=2, context_window_size=64)
with Target("llvm"):
    model = entry.model(config)
    module, params, _ = model.export_tvm(spec=model.get_default_spec(), allow_extern=True)
functions = [var.name_hint for var, _ in module.functions_items()]
print(json.dumps([sorted(functions), model.recurrent_floats]))
"""


RWKV = """
import json
import numpy as np
from mlc_llm.model.model import MODELS
from mlc_llm.quantization import QUANTIZATION
from tvm.target import Target

sizes = {"hidden_size": 32, "intermediate_size": 112, "num_hidden_layers": 2, "vocab_size": 32}
entry = MODELS["rwkv5" if VERSION == "5_2" else "rwkv6"]
config = entry.config(**sizes, head_size=16, model_version=VERSION, context_window_size=64)
with Target("llvm"):
    model = entry.model(config)
    module, params, _ = model.export_tvm(spec=model.get_default_spec(), allow_extern=True)
functions = [var.name_hint for var, _ in module.functions_items()]
source = entry.source["huggingface-safetensor"](config, QUANTIZATION["q0f32"])
decay = source.map_func["model.blocks.1.attention.time_decay"](np.float32([-3]))
print(json.dumps([sorted(functions), model.recurrent_floats, decay.tolist()]))
"""

LLAMA4 = """
import json
from mlc_llm.model.model import MODELS
from tvm import relax
from tvm.target import Target

sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}
sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-5}
sizes |= {"num_experts_per_tok": 1, "num_local_experts": 2, "interleave_moe_layer_step": 1}
scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
sizes |= {"rope_scaling": {**scaling, "original_max_position_embeddings": 64}}
sizes |= {"rope_theta": 10000.0, "use_qk_norm": True, "hidden_act": "silu"}
sizes["no_rope_layers"] = [ROPE]
entry = MODELS["llama4"]
config = entry.config.from_dict({"text_config": sizes, "context_window_size": 64})
with Target("llvm"):
    model = entry.model(config)
    model.to(DTYPE)
    module, _, _ = model.export_tvm(spec=model.get_default_spec(), allow_extern=True)
functions = {var.name_hint: function for var, function in module.functions_items()}
relax.transform.LegalizeOps()(module)
lengths = [len(f.params) for name, f in functions.items() if "rope" in name]
print(json.dumps([lengths, str(module["decode"]).count("R.astype(")]))
"""


SMOLLM3 = """
from mlc_llm.model.model import MODELS
from tvm.target import Target

sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "vocab_size": 32}
sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5}
entry = MODELS["smollm3"]
config = entry.config(**sizes, context_window_size=64)
with Target("llvm"):
    model = entry.model(config)
    module, _, _ = model.export_tvm(spec=model.get_default_spec(), allow_extern=True)
print(str(module["decode"]).count("R.call_tir("))
"""


def test_chatglm3_turns_half_of_the_features_in_pairs() -> None:
    assert result_of(CHATGLM) == [{"rope_type": "gptj"}, 32]


def test_qwen35_reads_states_in_place() -> None:
    names, floats = result_of(QWEN35)  # type: ignore[misc]
    assert {"prefill", "decode", "batch_prefill", "batch_verify", "gated_delta_rule"} <= set(names)
    assert "create_rnn_state" not in names
    # Of the one layer: two heads' states, and three inputs of each channel of the convolution.
    assert floats == 2 * 16 * 16 + 3 * (2 * 16 + 2 * 16)


@pytest.mark.parametrize("version", ["5_2", "6_0"])
def test_rwkv_reads_states_in_place(version: str) -> None:
    names, floats, _ = result_of(RWKV.replace("VERSION", repr(version)))  # type: ignore[misc]
    assert {"prefill", "decode", "batch_decode", "read_states", "write_states"} <= set(names)
    # Of each layer: two heads' states, and the last inputs of its two parts.
    assert floats == 2 * (2 * 16 * 16 + 2 * 32)


def test_rwkv5_keeps_published_decays() -> None:
    _, _, decay = result_of(RWKV.replace("VERSION", repr("5_2")))  # type: ignore[misc]
    assert decay == [-3]


def read_llama4(dtype: str, rope: int) -> tuple[list[int], int]:
    program = LLAMA4.replace("DTYPE", repr(dtype)).replace("ROPE", str(rope))
    lengths, casts = result_of(program)  # type: ignore[misc]
    return lengths, casts


def test_llama4_turns_queries_and_keys() -> None:
    assert read_llama4("float32", 1)[0] == [5]


def test_llama4_masks_experts_in_halves() -> None:
    assert read_llama4("float16", 1)[0]


def test_llama4_scales_queries_in_float32() -> None:
    # Of positions, of scales, and of logits.
    assert read_llama4("float16", 0)[1] == 3


def test_smollm3_turns_three_of_four_layers() -> None:
    assert result_of(SMOLLM3) == 3
