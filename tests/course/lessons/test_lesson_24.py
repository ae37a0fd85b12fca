"""The checkers of lesson 24 tell wrong answers apart; the record is what a live bucket gives."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from gptoss_lab.course.lab import CAPITALS, ROOT
from gptoss_lab.course.lessons import draw_24, storage_24
from gptoss_lab.course.lessons.lesson_24 import choose_files, lost_names
from gptoss_lab.model import Config, GptOss, generate, load_tokenizer
from gptoss_lab.weights.checkpoint import read_checkpoint
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.object_store import INSTALL, ObjectStore, what_is_missing
from gptoss_lab.weights.ranks import RankResult, plan_rounds
from gptoss_lab.weights.ranks import lost_names as package_lost_names

# --- 24.1


def name_of(uri):
    return uri.rsplit("/", 1)[-1]


def chooses(match=None, missing="error", no_index="error", order=sorted, wanted=None, names=True):
    """An answer that is right but for one of these."""

    def answer(listed, index):
        if index is None:
            if len(listed) != 1 and no_index == "error":
                raise ValueError(f"{len(listed)} files and no index")
            return list(listed) if no_index != "nothing" else []
        files = wanted(index) if wanted else set(index["weight_map"].values())
        absent = files - {name_of(uri) for uri in listed}
        if absent and missing == "error":
            raise ValueError(f"missing: {sorted(absent)}" if names else "a file is missing")
        found = match or (lambda uri, files: name_of(uri) in files)
        return order(uri for uri in listed if found(uri, files))

    return answer


def as_it_was(listed, index):
    """The real loader: no index, so all belong to the model."""
    if index is None:
        return list(listed)
    return chooses()(listed, index)


def last_upload(listed, index):
    """Takes the shards of the highest count, as if that were the newest upload."""
    chooses()(listed, index)
    count = max((name.split("-of-")[-1] for name in map(name_of, listed)), default="")
    return sorted(uri for uri in listed if uri.endswith(count))


def made_from_the_index(listed, index):
    """Addresses from the first listed one: never looks what is there."""
    if index is None:
        return chooses()(listed, index)
    prefix = listed[0].rsplit("/", 1)[0]
    return sorted(f"{prefix}/{file}" for file in set(index["weight_map"].values()))


def raises_a_key_error(listed, index):
    if index is None:
        return chooses()(listed, index)
    by_name = {name_of(uri): uri for uri in listed}
    return sorted(by_name[file] for file in set(index["weight_map"].values()))


def sorts_in_place(listed, index):
    listed.sort()
    return chooses()(listed, index)


def one_a_tensor(listed, index):
    if index is None:
        return chooses()(listed, index)
    chooses()(listed, index)
    by_name = {name_of(uri): uri for uri in listed}
    return sorted(by_name[file] for file in index["weight_map"].values())


def none_is_well(listed, index):
    return [] if index is None and not listed else chooses()(listed, index)


def an_empty_index_is_none(listed, index):
    return chooses()(listed, index if index and index["weight_map"] else None)


CHOOSE = {
    "everything": (lambda listed, index: list(listed), "Keep the addresses whose last part is among the index's files"),
    "as it was": (as_it_was, "This is how the stale file got in"),
    "by endswith": (chooses(lambda uri, files: uri.endswith(tuple(files))), "`old-model.safetensors`"),
    "by a text within": (
        chooses(lambda uri, files: any(file in uri for file in files)),
        "the part behind the last `/`",
    ),
    "in the order of the listing": (chooses(order=list), "so that each load reads in the same order"),
    "a missing file passes": (chooses(missing="pass"), "what the index names must be listed"),
    "a missing file without its name": (chooses(names=False), "does not mention"),
    "a KeyError": (raises_a_key_error, "raised KeyError"),
    "made from the index": (made_from_the_index, "case 'a file is missing'"),
    "the newest upload": (last_upload, "case"),
    "one a tensor": (one_a_tensor, "some of it more than once"),
    "not sorted": (chooses(order=lambda uris: sorted(uris, reverse=True)), "but is not sorted"),
    "no index, no file": (none_is_well, "case 'no index, no file'"),
    "an empty index is none": (an_empty_index_is_none, "case 'an index that names no file'"),
    "no index, nothing": (chooses(no_index="nothing"), "A model of one file needs no index"),
    "sorts its argument": (sorts_in_place, "changed its input: `listed`"),
    "names without addresses": (lambda listed, index: [name_of(u) for u in chooses()(listed, index)], "case"),
    "no answer": (lambda listed, index: None, "does every way through the function `return`?"),
}

# --- 24.2


def overlap(old, new):
    return max(old.start, new.start) < min(old.stop, new.stop)


def loses(buffers=lambda sender, rank: sender == rank, hit=overlap, reach=None, finish=sorted):
    """An answer that is right but for one of these."""

    def answer(rounds, rank):
        held, lost = {}, []
        for row in rounds:
            for sender, batch in enumerate(row):
                before = held.setdefault(buffers(sender, rank), [])
                for old in before[-reach:] if reach else before:
                    if old.name not in lost and any(hit(old, new) for new in batch):
                        lost.append(old.name)
                before.extend(batch)
        return finish(lost)

    return answer


def only_the_next(rounds, rank):
    """Compares each batch with the one behind it in the same buffer."""
    lost = set()
    for mine in (True, False):
        batches = [batch for row in rounds for sender, batch in enumerate(row) if (sender == rank) == mine]
        for batch, later in zip(batches, batches[1:], strict=False):
            lost |= {old.name for old in batch if any(overlap(old, new) for new in later)}
    return sorted(lost)


def all_but_the_last(rounds, rank):
    """All that was received but for the last batch, and no interval looked at."""
    batches = [batch for row in rounds for sender, batch in enumerate(row) if sender != rank and batch]
    return sorted(slot.name for batch in batches[:-1] for slot in batch)


def received_only(rounds, rank):
    return loses()([[batch if sender != rank else [] for sender, batch in enumerate(row)] for row in rounds], rank)


def one_round(rounds, rank):
    return loses()(rounds[-1:], rank)


def each_round_alone(rounds, rank):
    return sorted({name for row in rounds for name in loses()([row], rank)})


def for_three_ranks(rounds, rank):
    return sorted(slot.name for row in rounds for slot in row[1 if rank == 0 else 0])


def empties_its_input(rounds, rank):
    answer = loses()(rounds, rank)
    rounds.clear()
    return answer


def wholly(old, new):
    return new.start <= old.start and old.stop <= new.stop


def touching(old, new):
    return max(old.start, new.start) <= min(old.stop, new.stop)


LOST = {
    "nothing": (lambda rounds, rank: [], "case 'three ranks, one round'"),
    "one buffer for all": (loses(buffers=lambda *_: 0), "lie in another buffer than those it receives"),
    "a buffer for each sender": (loses(buffers=lambda sender, rank: sender), "from offset 0"),
    "only the next batch": (only_the_next, "Any later batch in the same buffer counts"),
    "all but the last": (all_but_the_last, "what lies behind its end is spared"),
    "covered as a whole": (loses(hit=wholly), "case 'a short batch after a long one'"),
    "touching": (loses(hit=touching), "Intervals are [start, stop)"),
    "by the same start": (loses(hit=lambda old, new: old.start == new.start), "case"),
    "received only": (received_only, "fills the rank's own buffer again"),
    "the last round": (one_round, "case"),
    "each round alone": (each_round_alone, "case 'two ranks, two rounds'"),
    "for three ranks": (for_three_ranks, "case"),
    "not sorted": (loses(finish=list), "but is not sorted"),
    "doubled": (loses(finish=lambda lost: sorted(lost * 2)), "some of it more than once"),
    "a set": (loses(finish=set), "case"),
    "empties its input": (empties_its_input, "changed its input: `rounds`"),
    "no answer": (lambda rounds, rank: None, "does every way through the function `return`?"),
}

WRONG = {choose_files: CHOOSE, lost_names: LOST}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (choose_files, storage_24.choose_files),
        (choose_files, chooses()),
        (lost_names, package_lost_names),
        (lost_names, loses()),
    ],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)


def stub(*args):
    raise NotImplementedError


@pytest.mark.parametrize("checker", WRONG, ids=lambda checker: checker.exercise)
def test_a_stub_is_not_attempted(checker):
    verdict = checker.verdict(stub)
    assert not verdict.attempted and "not attempted yet" in str(verdict)


# --- the bucket, live or recorded


def test_without_the_extra_the_lesson_says_so_and_shows_the_record(monkeypatch, capsys):
    monkeypatch.setattr(storage_24, "what_is_missing", lambda: ["boto3"])
    bucket = storage_24.open_bucket()
    said = capsys.readouterr().out
    record = json.loads(storage_24.RECORD.read_text())
    assert bucket.store is None and bucket.uris is None and bucket.environment == {}
    assert "Not installed: boto3" in said and INSTALL in said
    assert record["device"] in said and record["date"] in said

    def look():
        raise AssertionError("nobody may look into a bucket that is not there")

    assert bucket.shown("texts", look) == record["found"]["texts"]
    with pytest.raises(KeyError, match="benchmarks/object_storage.py"):
        bucket.shown("what nobody recorded", look)
    bucket.close()


def test_without_extra_and_record_the_remedy_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(storage_24, "what_is_missing", lambda: ["boto3"])
    bucket = storage_24.open_bucket(tmp_path / "absent.json")
    with pytest.raises(KeyError, match="--record"):
        bucket.shown("texts", list)


def test_the_record_agrees_with_the_plan_and_carries_its_origin():
    record = json.loads(storage_24.RECORD.read_text())
    assert {"device", "date", "versions", "command", "commit"} <= record.keys()
    assert record["versions"]["runai-model-streamer"] == record["versions"]["runai-model-streamer-s3"] == "0.16.1"
    names = read_checkpoint(CAPITALS).tensors.keys()
    assert set(record["found"]["seen"]["names"]) == names
    assert len(record["found"]["seen"]["names"]) == 2 * len(names)


@pytest.mark.slow
@pytest.mark.skipif(bool(what_is_missing()), reason=f"the extra s3 is not installed: {INSTALL}")
def test_the_record_is_what_a_live_bucket_gives():
    before = dict(os.environ)
    found = runpy.run_path(str(ROOT / "benchmarks" / "object_storage.py"))["run_lesson"]()
    assert found == json.loads(storage_24.RECORD.read_text())["found"]
    assert dict(os.environ) == before


@pytest.mark.slow
@pytest.mark.skipif(bool(what_is_missing()), reason=f"the extra s3 is not installed: {INSTALL}")
def test_replacing_removes_what_was_there_and_a_closed_bucket_says_so(tmp_path):
    files = [tmp_path / name for name in ("new", "old")]
    for file in files:
        file.write_text(file.name)
    bucket = storage_24.Bucket(ObjectStore("models").start(), None)
    try:
        bucket.store.upload(files, "capitals")
        assert bucket.replace(files[:1], "capitals") == ["s3://models/capitals/new"]
        left = bucket.store.client().list_objects_v2(Bucket="models")["Contents"]
        assert [found["Key"] for found in left] == ["capitals/new"]
    finally:
        bucket.close()
    for ask in (lambda: bucket.shown("texts", list), lambda: bucket.uris, lambda: bucket.environment):
        with pytest.raises(RuntimeError, match="the bucket is closed: run `bucket = storage_24.open_bucket"):
            ask()


def test_the_older_version_is_complete_and_differs_in_two_rows(tmp_path):
    checkpoint, tokenizer = read_checkpoint(CAPITALS), load_tokenizer(CAPITALS)
    files = storage_24.write_older_version(tmp_path / "older", checkpoint, tokenizer)
    assert [file.name for file in files] == [f"model-{at:05}-of-00004.safetensors" for at in range(1, 5)]
    new, old = storage_24.load_all(checkpoint.files), storage_24.load_all(files)
    assert differing(new, old) == [storage_24.LM_HEAD]
    rows = (new[storage_24.LM_HEAD] != old[storage_24.LM_HEAD]).any(dim=1).nonzero().flatten().tolist()
    assert sorted(rows) == sorted(tokenizer.encode(word).ids[0] for word in storage_24.SWAPPED)
    assert storage_24.LM_HEAD in storage_24.load_all(files[-1:])  # in the last file of the listing
    model = GptOss(Config.from_file(CAPITALS))
    for name, tensor in old.items():
        model.copy_in(name, tensor)
    answer = generate(model, tokenizer, "The capital of France is")
    assert answer.text.startswith(storage_24.SWAPPED[1]) and answer.nonfinite == 0


def test_the_picture_says_which_part_is_wrong_where(monkeypatch):
    shown = []
    monkeypatch.setattr(draw_24.figures, "show", lambda fig, alt, caption="": (shown.append(alt), plt.close(fig)))
    rounds = plan_rounds(read_checkpoint(CAPITALS), 2)
    parts = [[slot.name for slot in batch] for batch in rounds[0]]
    results = [RankResult(0, [], parts[1][:3], 2, "cpu", 0, 0), RankResult(1, [], [], 2, "cpu", 0, 0)]
    draw_24.draw_lost(results, rounds)
    (alt,) = shown
    assert f"On rank 0 the wrong ones are 0 of {len(parts[0])}, 3 of {len(parts[1])}" in alt
    assert f"On rank 1 the wrong ones are 0 of {len(parts[0])}, 0 of {len(parts[1])}" in alt


def test_the_benchmark_runs_the_cells_that_ask_the_bucket():
    source = Path(ROOT / "notebooks" / "24__object_storage.ipynb").read_text()
    record = json.loads(storage_24.RECORD.read_text())["found"]
    assert all(f'bucket.shown(\\"{what}\\"' in source for what in record)
    assert source.count("bucket.shown(") == len(record)
