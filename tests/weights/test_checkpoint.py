"""gpt-oss's names, sizes and order; checkpoints written and read back; every fault that must be refused."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig

from gptoss_lab.config import Config
from gptoss_lab.weights import checkpoint as ck
from gptoss_lab.weights.checkpoint import (
    GPT_OSS_20B,
    GPT_OSS_120B,
    SHARD_LIMIT,
    TINY,
    CheckpointError,
    TensorSpec,
    read_checkpoint,
    read_header,
    tensor_specs,
    write_checkpoint,
    write_random_checkpoint,
)

SMALL = replace(TINY, num_hidden_layers=11, num_local_experts=4, vocab_size=64, hidden_size=32)


def small_tensors() -> dict[str, torch.Tensor]:
    """Tensors of several dtypes and sizes, in an order that is neither alphabetical nor that of a file."""
    torch.manual_seed(0)
    return {
        "z.weight": torch.randn(6, 4).bfloat16(),
        "a.bytes": torch.randint(0, 256, (5, 3), dtype=torch.uint8),
        "m.float": torch.randn(7),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "ünïcode": torch.ones(2).half(),
    }


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A checkpoint of several shards."""
    write_checkpoint(tmp_path / "ck", small_tensors(), {"model_type": "none"}, shard_limit=50)
    return tmp_path / "ck"


# Names, sizes and order


@pytest.mark.parametrize(
    ("config", "count", "total", "not_experts"),
    [
        (TINY, 155, 2_661_120, None),
        (GPT_OSS_20B, 459, 13_761_264_768, 3_595_648_128),
        (GPT_OSS_120B, 687, 65_248_815_744, 4_255_115_904),
    ],
)
def test_totals_to_the_byte(config, count, total, not_experts):
    specs = tensor_specs(config)
    assert len({spec.name for spec in specs}) == len(specs) == count
    assert sum(spec.nbytes for spec in specs) == total
    if not_experts is not None:
        assert sum(spec.nbytes for spec in specs if not spec.is_expert) == not_experts


def test_shards_of_20b_have_the_published_sizes():
    shards = ck.shard(tensor_specs(GPT_OSS_20B), SHARD_LIMIT)
    assert [ck.file_bytes(inside) for inside in shards] == [4_792_272_488, 4_798_702_184, 4_170_342_232]


def test_the_largest_tensor_of_20b_is_the_embedding():
    largest = max(tensor_specs(GPT_OSS_20B), key=lambda spec: spec.nbytes)
    assert (largest.name, largest.nbytes) == ("model.embed_tokens.weight", 1_158_266_880)


def test_order_of_writing():
    names = [spec.name for spec in tensor_specs(GPT_OSS_20B)]
    layers = list(dict.fromkeys(name.split(".")[2] for name in names if name.startswith("model.layers")))
    assert layers == [str(layer) for layer in [0, 1, *range(10, 20), 2, *range(20, 24), *range(3, 10)]]
    assert [name.removeprefix("model.layers.0.") for name in names[:19]] == [
        "input_layernorm.weight",
        *(f"self_attn.o_proj.{part}" for part in ("bias", "weight")),
        *(f"self_attn.{letter}_proj.bias" for letter in "qkv"),
        *(f"self_attn.{letter}_proj.weight" for letter in "qkv"),
        "self_attn.sinks",
        *(f"mlp.router.{part}" for part in ("bias", "weight")),
        *(f"mlp.experts.gate_up_proj_{part}" for part in ("bias", "blocks", "scales")),
        *(f"mlp.experts.down_proj_{part}" for part in ("bias", "blocks", "scales")),
        "post_attention_layernorm.weight",
    ]
    assert names[-3:] == ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]


def test_shapes_and_dtypes_of_the_experts():
    specs = {spec.name.removeprefix("model.layers.0.mlp.experts."): spec for spec in tensor_specs(GPT_OSS_20B)}
    found = {name: (spec.dtype, spec.shape) for name, spec in specs.items() if "_proj_" in name and "." not in name}
    assert found == {
        "gate_up_proj_bias": ("BF16", (32, 5760)),
        "gate_up_proj_blocks": ("U8", (32, 5760, 90, 16)),
        "gate_up_proj_scales": ("U8", (32, 5760, 90)),
        "down_proj_bias": ("BF16", (32, 2880)),
        "down_proj_blocks": ("U8", (32, 2880, 90, 16)),
        "down_proj_scales": ("U8", (32, 2880, 90)),
    }


def test_expert_shapes_tell_hidden_from_intermediate():
    specs = {spec.name: spec.shape for spec in tensor_specs(replace(TINY, hidden_size=64, intermediate_size=96))}
    experts = "model.layers.0.mlp.experts."
    assert specs[experts + "gate_up_proj_blocks"] == (32, 192, 2, 16)
    assert specs[experts + "down_proj_blocks"] == (32, 64, 3, 16)
    assert specs[experts + "down_proj_scales"] == (32, 64, 3)


def test_shard_starts_a_file_when_the_next_tensor_would_pass_the_limit():
    specs = [TensorSpec(str(i), "U8", (size,)) for i, size in enumerate([4, 6, 1, 20, 5, 5])]
    sizes = [[spec.nbytes for spec in inside] for inside in ck.shard(specs, 10)]
    assert sizes == [[4, 6], [1], [20], [5, 5]]  # exactly the limit fits; a larger tensor is alone
    assert ck.shard([], 10) == []
    with pytest.raises(ValueError, match="limit is 0"):
        ck.shard(specs, 0)


# Writing and reading


def test_what_is_written_is_read_back(written):
    checkpoint, tensors = read_checkpoint(written), small_tensors()
    assert len(checkpoint.files) > 2
    assert checkpoint.tensors.keys() == tensors.keys()
    assert checkpoint.total_bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    for name, stored in checkpoint.tensors.items():
        raw = stored.file.read_bytes()[stored.start : stored.start + stored.spec.nbytes]
        assert raw == tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes()
        assert stored.spec.shape == tuple(tensors[name].shape)
        assert torch.equal(load_file(stored.file)[name], tensors[name])


def test_files_have_the_predicted_size_and_order(tmp_path):
    write_random_checkpoint(tmp_path / "ck", SMALL, shard_limit=60_000)
    checkpoint = read_checkpoint(tmp_path / "ck")
    shards = ck.shard(tensor_specs(SMALL), 60_000)
    assert [path.name for path in checkpoint.files] == ck.shard_names(len(shards))
    for path, inside in zip(checkpoint.files, shards, strict=True):
        assert path.stat().st_size == ck.file_bytes(inside)
        assert [stored.spec for stored in read_header(path)] == ck.file_order(inside)
    assert len(shards) > 3


def test_bytes_of_a_file_are_bf16_by_name_then_u8_by_name(tmp_path):
    write_random_checkpoint(tmp_path / "ck", SMALL, shard_limit=10**9)
    stored = list(read_checkpoint(tmp_path / "ck").tensors.values())
    keys = [(0 if tensor.spec.dtype == "BF16" else 1, tensor.spec.name) for tensor in stored]
    assert keys == sorted(keys)
    assert [tensor.start for tensor in stored] == sorted(tensor.start for tensor in stored)


def test_files_are_readable_by_all_and_carry_no_metadata(written):
    for path in written.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    for path in written.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert file.metadata() is None


def test_index_gives_the_total(written):
    index = json.loads((written / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == read_checkpoint(written).total_bytes


def test_views_are_written_as_the_tensors_they_show(tmp_path):
    base = torch.arange(24, dtype=torch.float32).view(4, 6)
    write_checkpoint(tmp_path / "ck", {"turned": base.T, "cut": base[1:3, ::2]}, {}, shard_limit=1000)
    loaded = load_file(tmp_path / "ck" / "model-00001-of-00001.safetensors")
    assert torch.equal(loaded["turned"], base.T)
    assert torch.equal(loaded["cut"], base[1:3, ::2])


def test_writing_refuses_a_folder_with_content_and_leaves_it_alone(written):
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    with pytest.raises(FileExistsError, match="ck exists"):
        write_checkpoint(written, {"other": torch.ones(3)}, {})
    assert {path.name: path.read_bytes() for path in written.iterdir()} == before


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_writing_leaves_nothing_half_written(tmp_path, monkeypatch, fault):
    def fail(*_):
        raise fault("stopped")

    monkeypatch.setattr("gptoss_lab.weights.writing._write_json", fail)
    with pytest.raises(fault):
        write_checkpoint(tmp_path / "ck", small_tensors(), {})
    assert list(tmp_path.iterdir()) == []


def test_writing_refuses_what_safetensors_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="'x' is torch.complex128"):
        write_checkpoint(tmp_path / "ck", {"x": torch.ones(2, dtype=torch.complex128)}, {})
    with pytest.raises(ValueError, match="no tensor"):
        write_checkpoint(tmp_path / "ck", {}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("config", [TINY, GPT_OSS_20B, GPT_OSS_120B, replace(SMALL, eos_token_id=(3, 5))])
def test_config_json_is_read_back_as_the_same_shape(tmp_path, config):
    text = json.dumps(ck.config_json(config))
    (tmp_path / "config.json").write_text(text)
    ours = Config.from_file(tmp_path)
    assert replace(ours, layer_types=config.layer_types) == config
    assert [ours.window(layer) for layer in range(4)] == [config.window(layer) for layer in range(4)]
    theirs = GptOssConfig(**json.loads(text))
    assert theirs.rope_parameters["rope_type"] == "yarn"
    assert theirs.rope_parameters["truncate"] is False
    assert theirs.max_position_embeddings == 131072


def test_random_checkpoint_is_a_model_with_finite_logits(tmp_path):
    config = replace(SMALL, num_hidden_layers=2)
    write_random_checkpoint(tmp_path / "ck", config, shard_limit=40_000, seed=1)
    file = tmp_path / "ck" / "config.json"
    given_config = json.loads(file.read_text())
    given_config["quantization_config"]["dequantize"] = True
    file.write_text(json.dumps(given_config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ck", dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.arange(20)[None]).logits  # [1, 20, vocab]
    assert logits.isfinite().all()
    assert logits.std() > 0


def test_random_checkpoint_follows_its_seed(tmp_path):
    config = replace(SMALL, num_hidden_layers=1)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_random_checkpoint(tmp_path / name, config, seed=seed)
    a, b, c = ((tmp_path / name / "model-00001-of-00001.safetensors").read_bytes() for name in ("a", "b", "c"))
    assert a == b
    assert a != c


# Faults inside one file


def build_file(path: Path, header: object, data: bytes, length: int | None = None) -> Path:
    """Write a safetensors file by hand, with whatever is wrong in it."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def entry(begin: int, end: int, dtype: str = "U8", shape: list | None = None) -> dict:
    """A header entry; a flat shape that fits unless one is given."""
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


FAULTY_FILES = {
    "empty file": (b"", b"", None, "is truncated"),
    "header is cut": ({"a": entry(0, 4)}, b"", 5000, "header is cut.*5000"),
    "header beyond the limit": ({"a": entry(0, 4)}, b"1234", 2**63, "header is cut.*wrong.*limit"),
    "header is not JSON": (b"{'a': 1}", b"", None, "not JSON"),
    "header is not UTF-8": (b'{"\xff": 1}', b"", None, "not JSON"),
    "header is a list": ([1], b"", None, "JSON list"),
    "header is nested too deep": (b'{"a":' * 99999, b"", None, "not JSON"),
    "header has a huge number": (b'{"a":' + b"9" * 5000 + b"}", b"", None, "not JSON"),
    "header has NaN": (b'{"a": NaN}', b"", None, "not JSON.*NaN"),
    "metadata is no map of text": ({"__metadata__": {"a": 1}}, b"", None, "__metadata__"),
    "file is truncated": ({"a": entry(0, 8)}, b"1234", None, "truncated"),
    "bytes behind the last tensor": ({"a": entry(0, 4)}, b"12345", None, "bytes behind"),
    "first tensor not at 0": ({"a": entry(2, 4)}, b"1234", None, "'a'.*offset 2.*first tensor"),
    "ranges overlap": ({"a": entry(0, 4), "b": entry(3, 6)}, b"123456", None, "'b'.*offset 3.*overlaps 'a'"),
    "one range twice": ({"a": entry(0, 4), "b": entry(0, 4)}, b"1234", None, "'b'.*overlaps 'a'"),
    "a gap": ({"a": entry(0, 2), "b": entry(3, 4)}, b"1234", None, "'b'.*gap.*'a' ends at 2"),
    "range too short": ({"a": entry(0, 4, "F32", [2])}, b"1234", None, r"F32 \[2\] needs 8 bytes.*has 4"),
    "range too long": ({"a": entry(0, 4, "BF16", [1])}, b"1234", None, "needs 2 bytes.*has 4"),
    "range backwards": ({"a": entry(4, 0, "U8", [4])}, b"1234", None, r"range \[4, 0\]"),
    "negative offset": ({"a": entry(-4, 0)}, b"", None, r"range \[-4, 0\]"),
    "three offsets": ({"a": entry(0, 4) | {"data_offsets": [0, 2, 4]}}, b"1234", None, r"range \[0, 2, 4\]"),
    "offsets of text": ({"a": entry(0, 4) | {"data_offsets": ["0", "4"]}}, b"1234", None, "range"),
    "unknown dtype": ({"a": entry(0, 4, "F4")}, b"1234", None, "'a'.*unknown dtype 'F4'"),
    "dtype is a list": ({"a": entry(0, 4) | {"dtype": ["U8"]}}, b"1234", None, "unknown dtype"),
    "negative shape": ({"a": entry(0, 4, "U8", [-2, -2])}, b"1234", None, r"shape \[-2, -2\]"),
    "shape of fractions": ({"a": entry(0, 4, "U8", [4.0])}, b"1234", None, r"shape \[4.0\]"),
    "shape of booleans": ({"a": entry(0, 1, "U8", [True])}, b"1", None, r"shape \[True\]"),
    "no shape": ({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, b"1", None, "needs dtype, shape"),
    "entry is a number": ({"a": 1}, b"", None, "needs dtype, shape"),
    "a name twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"12", None, "'a' stands twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTY_FILES)
def test_faulty_file_is_refused_with_its_name_and_fault(tmp_path, case):
    header, data, length, message = FAULTY_FILES[case]
    path = build_file(tmp_path / "model.safetensors", header, data, length)
    if case == "empty file":
        path.write_bytes(b"1234")
    with pytest.raises(CheckpointError, match=message) as refused:
        read_header(path)
    assert str(path) in str(refused.value)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path)


def test_no_tensor_is_read_before_the_checks(written, monkeypatch):
    """All shards but the last have their tensor bytes overwritten: reading the headers cannot see it."""
    expected = read_checkpoint(written)
    for path in expected.files:
        start = min(stored.start for stored in read_header(path))
        raw = path.read_bytes()
        path.write_bytes(raw[:start] + b"\xff" * (len(raw) - start))
    assert read_checkpoint(written) == expected


def test_file_without_a_tensor_gives_none(tmp_path):
    save_file({}, tmp_path / "none.safetensors")
    assert read_header(tmp_path / "none.safetensors") == []


def test_metadata_is_no_tensor(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert list(read_checkpoint(tmp_path).tensors) == ["a"]


def test_zero_size_tensors_are_kept_wherever_they_stand(tmp_path):
    header = {"a": entry(0, 0), "b": entry(0, 3), "c": entry(3, 3, "F32", [0, 7]), "d": entry(3, 4)}
    stored = read_header(build_file(tmp_path / "f.safetensors", header, b"1234"))
    assert {tensor.spec.name: tensor.spec.nbytes for tensor in stored} == {"a": 0, "b": 3, "c": 0, "d": 1}
    assert [tensor.start for tensor in stored] == sorted(tensor.start for tensor in stored)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_any_damaged_byte_is_refused_where_safetensors_refuses_it(tmp_path, place, byte):
    """safetensors is the oracle: a file that it refuses is refused here, and what both take is the same."""
    path = tmp_path / "f.safetensors"
    save_file({name: t for name, t in small_tensors().items() if name != "ünïcode"}, path)
    raw = bytearray(path.read_bytes())
    raw[place % (8 + int.from_bytes(raw[:8], "little"))] = byte
    path.write_bytes(raw)
    try:
        with safe_open(path, "pt") as file:
            theirs = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    except (SafetensorError, OverflowError, MemoryError):
        with pytest.raises(CheckpointError):
            read_header(path)
    else:
        try:
            ours = {stored.spec.name: stored.spec.shape for stored in read_header(path)}
        except CheckpointError as refused:
            # The two points where we are stricter.
            assert "twice" in str(refused) or "unknown dtype" in str(refused)
        else:
            assert ours == theirs


# Faults between index and files


def edit_index(folder: Path, change) -> None:
    """Apply `change` to the index's weight_map."""
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def delete_shard(folder: Path) -> str:
    (folder / "model-00002-of-00003.safetensors").unlink()
    return "model-00002-of-00003.safetensors is missing"


def add_stale_shard(folder: Path) -> str:
    save_file({"stale": torch.ones(1)}, folder / "model-00000-of-00009.safetensors")
    return "model-00000-of-00009.safetensors is not in model.safetensors.index.json"


def add_empty_shard(folder: Path) -> str:
    save_file({}, folder / "model-00004-of-00003.safetensors")
    return "model-00004-of-00003.safetensors is not in model.safetensors.index.json"


def name_absent_tensor(folder: Path) -> str:
    edit_index(folder, lambda names: names.update(absent="model-00001-of-00003.safetensors"))
    return "model-00001-of-00003.safetensors lacks tensor 'absent'"


def forget_a_tensor(folder: Path) -> str:
    edit_index(folder, lambda names: names.pop("a.bytes"))
    return "model-0000.-of-00003.safetensors holds tensor 'a.bytes', which .* does not name"


def move_a_tensor(folder: Path) -> str:
    edit_index(folder, lambda names: names.update({"a.bytes": "model-00003-of-00003.safetensors"}))
    return "'a.bytes' into model-00003-of-00003.safetensors, but it is in model-00002"


def store_a_tensor_twice(folder: Path) -> str:
    path = folder / "model-00003-of-00003.safetensors"
    save_file(load_file(path) | {"z.weight": torch.zeros(1)}, path)
    return "00003-of-00003.safetensors: tensor 'z.weight' is in model-00001-of-00003.safetensors as well"


def point_outside(folder: Path) -> str:
    edit_index(folder, lambda names: names.update({"z.weight": "../model.safetensors"}))
    return "'z.weight' into '../model.safetensors'"


def point_to_a_number(folder: Path) -> str:
    edit_index(folder, lambda names: names.update({"z.weight": 1}))
    return "'z.weight' into 1"


def empty_the_index(folder: Path) -> str:
    edit_index(folder, lambda names: names.clear())
    return "no weight_map"


def break_the_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text("{")
    return "index is not JSON"


def repeat_in_the_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x", "a": "y"}}')
    return "'a' stands twice in the index"


def remove_the_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").unlink()
    return "index.json is missing, and there is no model.safetensors"


def single_file_beside_others(folder: Path) -> str:
    (folder / "model.safetensors.index.json").unlink()
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    return "model-00001-of-00003.safetensors is not in"


def truncate_a_shard(folder: Path) -> str:
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return "model-00002-of-00003.safetensors is truncated"


def a_folder_as_shard(folder: Path) -> str:
    path = folder / "model-00002-of-00003.safetensors"
    path.unlink()
    path.mkdir()
    return "model-00002-of-00003.safetensors is missing"


def no_folder(folder: Path) -> str:
    shutil.rmtree(folder)
    return "is not a folder"


FOLDER_FAULTS = [
    delete_shard, add_stale_shard, add_empty_shard, name_absent_tensor, forget_a_tensor, move_a_tensor,
    store_a_tensor_twice, point_outside, point_to_a_number, empty_the_index, break_the_index,
    repeat_in_the_index, remove_the_index, single_file_beside_others, truncate_a_shard,
    a_folder_as_shard, no_folder,
]  # fmt: skip


@pytest.mark.parametrize("plant", FOLDER_FAULTS, ids=lambda plant: plant.__name__)
def test_index_and_files_that_disagree_are_refused(written, plant):
    assert len(read_checkpoint(written).files) == 3
    message = plant(written)
    with pytest.raises(CheckpointError, match=message) as refused:
        read_checkpoint(written)
    assert str(written) in str(refused.value)


def test_single_file_needs_no_index(tmp_path):
    tensors = small_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.files == [tmp_path / "model.safetensors"]
    assert checkpoint.tensors.keys() == tensors.keys()
